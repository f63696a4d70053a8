"""Runs of `grpo`: rollouts, their log-probabilities, updates, resumed runs, meshes, rewards of the user."""

import dataclasses
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

import launch
from experiments.evaluation.mean_reward import MeanReward
from experiments.policy.estimators import ESTIMATORS
from experiments.policy.rewards import REWARDS
from experiments.policy.rollout_step import RolloutStep
from experiments.policy.rollouts import Grouped, PromptRows, draw_answers
from tests import runs
from transformer.decoding.generation import generate
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

TINY = "configs/studies/rl/grpo_problems.py:tiny"

SUPERVISED = "configs/studies/rl/supervised_problems.py:tiny"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """Sums, with prompts of several lengths."""
    records = [{"prompt": f"{i}+{7 * i}", "answer": f"{8 * i}", "place": i} for i in range(60)]
    file = tmp_path_factory.mktemp("data") / "a.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"jsonl:{file}"


@pytest.fixture(autouse=True)
def reward(monkeypatch):
    """A reward that differs between answers of a model that has learned nothing: the share of digits."""
    share = lambda prompt, answer, record: sum(map(str.isdecimal, answer)) / max(1, len(answer))  # noqa: E731
    monkeypatch.setitem(REWARDS, "digits", share)


KEYS = {
    "rollout.reward": "digits",
    "rollout.samples": "4",
    "rollout.max_new_tokens": "8",
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": "0",
    "train.log_every": "1",
}


def flags(source: str, workdir, keys: dict[str, str], config: str = TINY) -> list[str]:
    values = {"data.source": source, "data.tokenizer": "characters"} | keys
    return [f"--config={config}", f"--workdir={workdir}", *(f"--config.{k}={v}" for k, v in values.items())]


def opened(source: str, folder, **keys: str):
    """A run without training, its first state and its first batch of prompts."""
    given = {"data.source": source} | KEYS | {key.replace("__", "."): value for key, value in keys.items()}
    values = opening.read_config(TINY)
    run = opening.open_run(opening.RunFolder(folder), opening.check_config(values, [*given.items()]))
    with run.placed():
        return run, run.first_state(), run.put(run.loader.batch_at(0))


def rolled(run, state, batch):
    """The rows of a rollout."""
    with run.placed():
        return RolloutStep(run.experiment, run, None).roll(state, batch)


def logged(workdir, name: str) -> list[float]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def test_answers_are_those_of_the_generator_with_their_log_probabilities(source, tmp_path):
    """Also of rows that end early, and at another temperature."""
    run, state, batch = opened(source, tmp_path, rollout__temperature="0.7")
    e, room = run.experiment, 8
    rngs = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(3), jnp.arange(8))
    ends = jnp.array([5, 6, 7, 8, 9], jnp.int32)
    prompts, lengths = batch["tokens"][:, :33], batch["lengths"]
    stepper, options = e.stepper(state.params), {"temperature": 0.7}
    drawn = draw_answers(stepper, prompts, lengths, rngs, room=room, ends=ends, **options)
    tokens, counts = generate(stepper, prompts, lengths, rngs, max_new_tokens=room, eos_id=ends, **options)
    tokens, counts = np.asarray(tokens), np.asarray(counts)
    assert counts.min() > 0 or counts.max() < room  # some end early
    assert len(set(counts.tolist())) > 2
    np.testing.assert_array_equal(drawn.counts_b, np.minimum(counts + 1, room))
    for i, n in enumerate(counts):
        assert np.asarray(drawn.tokens_bn)[i, :n].tolist() == tokens[i, :n].tolist()
        ids = [*np.asarray(prompts)[i, : lengths[i]], *np.asarray(drawn.tokens_bn)[i, : drawn.counts_b[i]]]
        logits = e.model.apply({"params": state.params}, jnp.array([ids]))[0, :, : e.model.vocab_size]
        log_p = np.asarray(jax.nn.log_softmax(logits / 0.7))
        own = [log_p[k - 1, ids[k]] for k in range(int(lengths[i]), len(ids))]
        np.testing.assert_allclose(np.asarray(drawn.log_p_bn)[i, : len(own)], own, atol=1e-5)
        assert not np.asarray(drawn.log_p_bn)[i, len(own) :].any()


def test_rows_of_a_rollout_have_prompt_answer_and_advantage_in_place(source, tmp_path):
    run, state, batch = opened(source, tmp_path, data__template="plain", sample__end_tokens='["1", "2"]')
    rows, metrics = rolled(run, state, batch)
    again, _ = rolled(run, state, batch)
    jax.tree.map(np.testing.assert_array_equal, rows, again)
    later, _ = rolled(run, dataclasses.replace(state, step=state.step + 1), batch)
    assert not np.array_equal(rows["tokens"], later["tokens"])
    data, reward = run.experiment.data, REWARDS["digits"]
    records, rewards, ended = data.source("train"), [], []
    for i in range(8):
        n, start = int((rows["weights"][i] > 0).sum()), int(rows["lengths"][i])
        ids = [*rows["tokens"][i, : start + n - 1], rows["targets"][i, start + n - 2]]
        assert ids[:start] == data.chat.prompt(records.opening(int(rows["records"][i])))
        np.testing.assert_array_equal(rows["targets"][i, : start + n - 1], ids[1:])
        np.testing.assert_array_equal(rows["segments"][i], np.arange(40) < start + n)
        np.testing.assert_array_equal(np.flatnonzero(rows["weights"][i]), start - 1 + np.arange(n))
        np.testing.assert_array_equal(np.flatnonzero(rows["sampled"][i]), start - 1 + np.arange(n))
        assert rows["weights"][i].sum() == pytest.approx(1) and n <= 8
        answer = ids[start:][: n - (ids[-1] in run.experiment.ends)]
        ended.append(ids[-1])
        rewards.append(reward("", data.tokenizer.decode(answer), {}))
    assert {data.tokenizer.decode([last]) for last in ended} & {"1", "2"}
    groups = np.array(rewards).reshape(2, 4)
    assert float(metrics["reward"].mean) == pytest.approx(groups.mean())
    expected = (groups - groups.mean(axis=1, keepdims=True)) / groups.std(axis=1, keepdims=True)
    np.testing.assert_allclose(rows["advantages"].reshape(2, 4), expected, rtol=1e-4)
    assert len(set(rows["records"].tolist())) == 2 and (rows["records"].reshape(2, 4).std(axis=1) == 0).all()


def test_batches_of_prompts_return_and_repeat_each_prompt():
    rows = PromptRows({3: [1, 2], 5: [3], 9: [4, 5, 6]}, 8, {})
    loader = Grouped(rows, 4, seed=1, shuffle=True, repeat=True, samples=2, updates=3)
    seen = [loader.batch_at(step)["records"].tolist() for step in range(9)]
    assert len(loader) == 6 and seen[0] == seen[1] == seen[2] != seen[3]
    assert all(a == b and c == d for a, b, c, d in seen)
    assert sorted([*seen[0][::2], *seen[3][::2]][:3]) == [3, 5, 9]  # an epoch
    half = Grouped(rows, 4, seed=1, shuffle=True, repeat=True, needed=np.array([2, 3]), samples=2, updates=3)
    assert half.batch_at(4)["records"].tolist() == seen[4][2:]
    assert [row.tolist() for row in half.documents_at(4)] == [[n] for n in seen[4][2:]]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_loss_is_the_equation_of_each_estimator_also_when_the_ratio_is_not_1(name, source, tmp_path, rng):
    keys = {"loss__estimator": name, "loss__kl": "0.3", "rollout__temperature": "1.3"}
    run, state, batch = opened(source, tmp_path, **keys)
    e = run.experiment
    rows, _ = rolled(run, state, batch)
    there = rows["weights"] > 0
    rows["sampled"] = np.where(there, rows["sampled"] + rng.normal(size=there.shape) * 0.4, 0).astype(
        np.float32
    )
    rows["reference"] = np.where(there, rows["sampled"] - 0.3, 0).astype(np.float32)
    chunks = opened(source, tmp_path, **keys, loss__chunk_size="16")[0].experiment
    terms, in_chunks = (
        jax.jit(lambda p, e=e: e.loss(p, rows, jax.random.key(0), True))(state.params) for e in (e, chunks)
    )
    for term, value in terms.items():
        assert float(in_chunks[term].mean) == pytest.approx(float(value.mean), rel=1e-4, abs=1e-5), term
    inputs = {"segments_bt": rows["segments"], "positions_bt": rows["positions"]}
    logits = e.model.apply({"params": state.params}, rows["tokens"], **inputs)[..., : e.model.vocab_size]
    log_p_btv = np.float64(jax.nn.log_softmax(logits / 1.3))
    high = 0.28 if name == "dapo" else 0.2
    objectives, per_token, ratios = [], [], []
    for i in range(8):
        values = []
        for t in np.flatnonzero(there[i]):
            log_p, a = log_p_btv[i, t, rows["targets"][i, t]], float(rows["advantages"][i])
            ratio = np.exp(log_p - float(rows["sampled"][i, t]))
            q = np.exp(float(rows["reference"][i, t]) - log_p)
            k3 = q - np.log(q) - 1
            values.append(min(ratio * a, np.clip(ratio, 0.8, 1 + high) * a) - 0.3 * k3)
            ratios.append(ratio)
        per_token += values
        objectives.append(np.mean(values) if name == "grpo" else np.sum(values))
    expected = {"grpo": np.mean(objectives), "rloo": np.mean(objectives), "dapo": np.mean(per_token)}
    expected["dr_grpo"] = np.mean(objectives) / 8
    assert float(terms["loss"].mean) == pytest.approx(-expected[name], rel=1e-4, abs=1e-6)
    assert float(terms["ratio"].mean) == pytest.approx(np.mean(ratios), rel=1e-4)
    out = [not 0.8 <= ratio <= 1 + high for ratio in ratios]
    assert float(terms["clipped"].mean) == pytest.approx(np.mean(out)) and 0 < np.mean(out) < 1
    entropy = -(np.exp(log_p_btv) * log_p_btv).sum(axis=-1)[there].mean()
    assert float(terms["entropy"].mean) == pytest.approx(entropy, rel=1e-4)


def test_padding_that_the_model_finds_impossible_has_no_gradient(source, tmp_path):
    """Where log p of padding is far below -88, its k3 would be infinite."""
    run, state, batch = opened(source, tmp_path, loss__kl="0.3")
    e, (rows, _) = run.experiment, rolled(run, state, batch)
    peaked, there = jax.tree.map(lambda x: 50 * x, state.params), rows["weights"] > 0
    log_p = np.asarray(jax.jit(lambda p: e.log_probabilities(p, rows)[0])(peaked))
    assert log_p[~there].min() < -100
    rows |= {name: np.where(there, log_p, 0) for name in ("sampled", "reference")}
    gradient = jax.jit(jax.grad(lambda p: e.loss(p, rows, jax.random.key(0), True)["loss"].total))(peaked)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


@pytest.mark.thorough
def test_at_a_rate_of_0_nothing_moves(source, tmp_path):
    """Twenty steps: the parameters are the same bits, and the ratio is 1 within the measured gap."""
    more = {"optimizer.learning_rate": "0", "train.steps": "20", "rollout.updates": "2", "loss.kl": "0.1"}
    more |= {"optimizer.weight_decay": "0.1", "train.checkpoint_every": "1", "train.keep_last": "20"}
    assert launch.main(flags(source, tmp_path / "run", KEYS | more)) == 0
    first, last = (runs.state(tmp_path / "run", step) for step in (1, 20))
    jax.tree.map(np.testing.assert_array_equal, first.params, last.params)
    assert not np.array_equal(first.carry["tokens"], last.carry["tokens"])
    gaps = logged(tmp_path / "run", "train/logprob_gap_max")
    assert len(gaps) == 10 and 0 < max(gaps) < 1e-5
    assert max(logged(tmp_path / "run", "train/logprob_gap")) < 2e-6
    ratios = logged(tmp_path / "run", "train/ratio")
    assert len(ratios) == 20 and np.abs(np.array(ratios) - 1).max() < max(gaps)
    assert max(logged(tmp_path / "run", "train/clipped")) == 0
    assert max(logged(tmp_path / "run", "train/kl")) < 1e-8
    assert min(logged(tmp_path / "run", "train/informative")) > 0.4


KILLING = """
import os, signal
from experiments.policy import rollout_step
from experiments.policy.rewards import REWARDS

calls = {"sampling": 0, "scoring": 0, "updating": 0}

def counted(name, function):
    def call(*arguments, **options):
        calls[name] += 1
        if calls[name] == DIES[1] and name == DIES[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

def digits(prompt, answer, record):
    return sum(map(str.isdecimal, answer)) / max(1, len(answer))

REWARDS["digits"] = counted("scoring", digits)
rollout_step.draw_answers = counted("sampling", rollout_step.draw_answers)
rollout_step.RolloutStep.__call__ = counted("updating", rollout_step.RolloutStep.__call__)
"""


@pytest.mark.thorough
def test_a_run_that_is_killed_at_any_time_continues_as_if_it_had_not_been(source, tmp_path, capfd):
    """With two updates from a rollout; checkpoints in the middle of one, and adapters, momentum, KL."""
    more = {"train.steps": "8", "rollout.updates": "2", "loss.kl": "0.05", "train.checkpoint_every": "3"}
    more |= {"model.lora_rank": "2", "optimizer.train_only": "lora", "model.lora_layers": "."}
    keys = KEYS | more | {"model.scan_layers": "true", "model.num_layers": "2", "train.batch_size": "8"}
    states = {}
    for name, dies in (
        ("whole", [("", 0)]),
        ("killed", [("sampling", 3), ("scoring", 13), ("updating", 3)]),
    ):
        for number, die in enumerate([*dies, ("", 0)][: len(dies) + (name == "killed")]):
            include = tmp_path / f"{name}{number}.py"
            include.write_text(f"DIES = {die}\n{KILLING}")
            arguments = [*flags(source, tmp_path / name, keys), f"--include={include}"]
            process = runs.start(arguments)
            _, errors = process.communicate(timeout=500)
            assert process.returncode == (-signal.SIGKILL if die[0] else 0), errors
        states[name] = runs.state(tmp_path / name)
    jax.tree.map(np.testing.assert_array_equal, states["whole"], states["killed"])
    values = [logged(tmp_path / name, "train/reward") for name in states]
    assert values[0] == values[1] and len(set(values[0])) > 1


@pytest.mark.thorough
def test_meshes_and_microbatches_draw_and_learn_the_same(source, tmp_path):
    found = {}
    for name, keys in {
        "one": {},
        "parts": {"parallel.microbatches": "2"},
        "data": {"parallel.mesh.data": "2"},
        "fsdp": {"parallel.mesh.data": "1", "parallel.mesh.fsdp": "4", "parallel.microbatches": "2"},
        "tensor": {"parallel.mesh.data": "2", "parallel.mesh.tensor": "2"},
    }.items():
        keys = {"parallel.mesh.data": "1", "optimizer.name": "sgd", "optimizer.learning_rate": "1"} | keys
        keys |= {"optimizer.clip_norm": "0", "train.steps": "3", "rollout.updates": "2", "loss.kl": "0.1"}
        keys |= {"optimizer.weight_decay": "0", "loss.estimator": "dapo"}
        assert launch.main(flags(source, tmp_path / name, KEYS | keys)) == 0
        found[name] = runs.state(tmp_path / name)
    for name, state in found.items():
        np.testing.assert_array_equal(state.carry["tokens"], found["one"].carry["tokens"], err_msg=name)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
            state.params,
            found["one"].params,
        )


@pytest.mark.thorough
def test_it_learns_and_goes_on_from_a_supervised_run_in_bfloat16(source, tmp_path, capfd):
    """The share of digits rises, the gap of bfloat16 is reported, and a fork in a rollout draws again."""
    keys = {"train.steps": "20", "train.batch_size": "16", "evaluate.also": "answers:numeric"}
    assert launch.main(flags(source, tmp_path / "start", keys, SUPERVISED)) == 0
    assert 0 <= logged(tmp_path / "start", "answers/reward")[-1] <= 1
    several = ["--config.sample.num_samples=2", "--config.sample.temperature=1"]
    assert launch.main([f"--workdir={tmp_path}/start", "--mode=evaluate", *several]) == 0
    lines = dict(line.split(" ", 1) for line in capfd.readouterr().out.splitlines() if "answers/" in line)
    assert float(lines["answers/best"].split()[0]) >= float(lines["answers/reward"].split()[0])
    assert "95 % interval" in lines["answers/best"]
    more = {"initialize_from": str(tmp_path / "start"), "model.dtype": "bfloat16", "train.batch_size": "64"}
    more |= {"rollout.samples": "8", "train.steps": "31", "optimizer.learning_rate": "3e-3"}
    more |= {"rollout.updates": "2", "loss.estimator": "rloo", "evaluate.batch_size": "2"}
    run = tmp_path / "run"
    assert launch.main(flags(source, run, KEYS | more)) == 0, capfd.readouterr().err
    rewards = logged(run, "train/reward")
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1
    assert 1e-5 < max(logged(run, "train/logprob_gap_max")) < 1
    assert logged(run, "train/entropy")[-1] < logged(run, "train/entropy")[0]
    trained, params = opening.load(run)
    source_of_prompts = trained.experiment.data.source("validation")
    texts = [json.dumps(source_of_prompts.opening(i)) for i in range(2)]  # a batch
    answers = [texts[0] for texts in trained.experiment.predict(params, texts, trained.config.seed)]
    expected = np.mean([REWARDS["digits"]("", answer, {}) for answer in answers])
    assert logged(run, "eval/reward")[-1] == pytest.approx(expected) and expected > 0.5
    evaluator = MeanReward(trained.experiment, None, "validation", "digits")
    assert evaluator(params)["reward"] == pytest.approx(expected)
    assert evaluator.describe()["measured"] == "2 prompts" != f"{len(source_of_prompts)} prompts"
    assert logged(run, "eval/loss")[-1] == -logged(run, "eval/reward")[-1]
    assert launch.main([f"--workdir={run}", "--mode=replay", "--step=3"]) == 2
    assert "batches of grpo are drawn as it trains" in capfd.readouterr().err
    fork = [f"--workdir={run}", "--mode=fork", f"--to={tmp_path}/fork", "--config.train.steps=33"]
    assert launch.main([*fork, "--config.seed=1"]) == 0, capfd.readouterr().err
    assert len(logged(tmp_path / "fork", "train/reward")) == 2  # of step 32, whose rollout was lost, and 33


def test_several_answers_are_measured_by_their_mean_and_by_the_best(source, tmp_path):
    keys = {"sample__num_samples": "3", "sample__temperature": "1.0", "train__evaluate_batches": "2"}
    run, state, _ = opened(source, tmp_path, **keys)
    with run.placed():
        evaluator = MeanReward(run.experiment, run.put, "validation", "digits")
        measured = evaluator(state.params)
        records = run.experiment.data.source("validation")
        texts = [json.dumps(records.opening(i)) for i in range(evaluator._rewards_nc.shape[0])]
        drawn = [*run.experiment.predict(state.params, texts, run.config.seed)]
    rewards_ns = np.array([[REWARDS["digits"]("", answer, {}) for answer in answers] for answers in drawn])
    assert rewards_ns.shape[1] == 3 and rewards_ns.std(axis=1).max() > 0
    expected = {"reward": rewards_ns.mean(), "best": rewards_ns.max(axis=1).mean()}
    assert measured == pytest.approx(expected | {"loss": -expected["reward"]})
    assert evaluator.names(state.params) == ["reward", "best", "loss"] and "best" in evaluator.describe()
    run, state, _ = opened(source, tmp_path / "one")
    assert MeanReward(run.experiment, run.put, "validation", "digits").names(state.params) == [
        "reward",
        "loss",
    ]


def test_mistakes_are_one_line_before_anything_is_written(source, tmp_path, capfd, monkeypatch):
    for keys, message in (
        (
            {"train.batch_size": "10"},
            "config.train.batch_size: 10; expected a multiple of rollout.samples, 4",
        ),
        ({"rollout.max_new_tokens": "40"}, "config.rollout.max_new_tokens: 40 leave no token of a prompt"),
        ({"model.dropout": "0.1"}, "config.model.dropout: 0.1; answers are drawn without dropout"),
        ({"rollout.samples": "1"}, "config.rollout.samples: 1; expected at least 2"),
        ({"rollout.reward": "exac"}, "config.rollout.reward: 'exac'; expected one of 'exact', "),
        ({"loss.estimator": "ppo"}, "config.loss.estimator: 'ppo'; expected one of 'grpo', "),
        (
            {"rollout.max_new_tokens": "36", "data.too_long": "skip"},
            "config.data.too_long: no prompt is left of",
        ),
        ({"rollout.max_new_tokens": "36", "data.too_long": "refuse"}, "a.jsonl:1 has a prompt of "),
        ({"train.until": '{"batch_size": {"1": 4}}'}, "config.train.until"),
        (
            {"evaluate.also": "answers:exac"},
            "evaluate.also: answers:exac: no such reward; did you mean 'exact'",
        ),
    ):
        assert launch.main(flags(source, tmp_path / "run", KEYS | keys)) == 2
        error = capfd.readouterr().err
        assert message in error and "Traceback" not in error
        assert not (tmp_path / "run").exists()
    monkeypatch.setitem(
        REWARDS, "digits", lambda prompt, answer, record: 1 / (record["place"] - record["place"])
    )
    assert launch.main(flags(source, tmp_path / "run", KEYS)) == 2
    assert "the reward 'digits' of an answer to " in (error := capfd.readouterr().err)
    assert "a.jsonl:" in error and "fails: ZeroDivisionError: division by zero; the answer is" in error


def test_prompts_that_are_too_long_lose_their_beginning_or_are_left_out(source, tmp_path):
    whole = opened(source, tmp_path)[0].experiment.data
    records = whole.source("train")
    lengths = [len(whole.chat.prompt(records.opening(i))) for i in range(len(records))]
    most = min(lengths) + 1
    keys = {"rollout__max_new_tokens": str(41 - most)}
    cut = opened(source, tmp_path, **keys)[0].experiment.data.rows("train")
    kept = opened(source, tmp_path, **keys, data__too_long="skip")[0].experiment.data.rows("train")
    long = sum(length > most for length in lengths)
    assert len(cut) == len(lengths) and cut.tally["truncated"] == long > 0
    assert len(kept) == len(lengths) - long and kept.tally["too long"] == long
    first = next(i for i, length in enumerate(lengths) if length > most)
    tokens = whole.chat.prompt(records.opening(first))
    assert cut.batch(np.array([first]))["tokens"][0, :most].tolist() == tokens[-most:]
    numbers = kept.batch(np.arange(len(kept)))["records"].tolist()
    assert numbers == [i for i, length in enumerate(lengths) if length <= most]


@pytest.mark.thorough
def test_only_adapters_learn_and_the_reference_is_the_model_before(source, tmp_path):
    keys = {
        "model__lora_rank": "2",
        "model__lora_layers": ".",
        "optimizer__train_only": "lora",
        "loss__kl": "1",
    }
    run, state, batch = opened(source, tmp_path, **keys)
    rows, _ = rolled(run, state, batch)
    there = rows["weights"] > 0
    np.testing.assert_allclose(rows["reference"][there], rows["sampled"][there], atol=1e-5)
    with run.placed():
        before = jax.device_get(state.params)
        state, metrics = run.train_step()(state, batch)
    assert float(metrics["gradient_norm"].mean) > 0
    after = traverse_util.flatten_dict(jax.device_get(state.params), sep="/")
    for path, value in traverse_util.flatten_dict(before, sep="/").items():
        assert "lora" in path or np.array_equal(value, after[path])
