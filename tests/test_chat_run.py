import json
import math
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

import launch
from experiments.dpo import PreferenceOptimization
from tests import runs
from tests.test_coordinator import together
from transformer.data.chat.dialogues import Preferences
from transformer.training.run import Run
from transformer.training.state import State
from transformer.training.step import make_train_step
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

TALK = json.dumps([{"role": "user", "content": "what is 1 and 1?"}, {"role": "assistant", "content": "2"}])

AGAIN = '{"role": "user", "content": "and 1?"}'


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """Questions with a short answer and a long one, each in turn the better one."""
    records = []
    for i in range(48):
        prompt, answers = f"what is {i} and {i}?", (f"{2 * i}", f"it is {2 * i}, ünd so ön")
        chosen, rejected = answers[:: 1 if i % 2 else -1]
        talk = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answers[1]}]
        records.append({"messages": talk, "prompt": prompt, "chosen": chosen, "rejected": rejected})
    file = tmp_path_factory.mktemp("data") / "a.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"jsonl:{file}"


def train(config: str, workdir, source: str, *keys: str) -> int:
    given = [f"--config.data.source={source}", "--config.data.sequence_length=192", *keys]
    return launch.main([f"--config=configs/{config}.py:tiny", f"--workdir={workdir}", *given])


@pytest.fixture(scope="module")
def tuned(source, tmp_path_factory):
    """A run of conversations."""
    folder = tmp_path_factory.mktemp("runs") / "chat"
    keys = ["--config.model.num_layers=2", "--config.model.feed_forward=swiglu"]
    keys += ["--config.data.tokenizer=bpe", "--config.data.vocab_size=300"]
    assert train("finetune_chat", folder, source, *keys) == 0
    return folder


def dpo(tuned, source: str, *keys: str, workdir="") -> tuple[Run, PreferenceOptimization]:
    values = opening.read_config("configs/dpo.py:tiny", [("initialize_from", str(tuned))])
    overrides = [("data.source", source), ("data.sequence_length", "192"), *(key.split("=") for key in keys)]
    folder = opening.RunFolder(workdir or tuned.parent / "none")
    run = opening.open_run(folder, opening.check_config(opening.inherit(values, folder), overrides))
    return run, run.experiment


def alone(experiment: PreferenceOptimization):
    """(params) -> for each record of the training split, for both answers, its log-likelihood and the
    gradient of that, each conversation by itself."""
    source = experiment.data.source("train")
    assert isinstance(source, Preferences)
    encoded = []
    for index in range(len(source)):
        for talk in source.conversations(index):
            ids, answers = experiment.data.chat.encode(talk, last_only=True)
            encoded.append((np.pad(ids, (0, 96 - len(ids))), len(ids), int(answers.argmax())))

    @jax.jit
    @jax.value_and_grad
    def likelihood(params, tokens, length, start):
        logits = experiment.model.apply({"params": params}, tokens[None])[0]
        log_p = jax.nn.log_softmax(logits[..., : experiment.model.vocab_size], axis=-1)
        own = jnp.take_along_axis(log_p[:-1], tokens[1:, None], axis=1)[:, 0]
        place = jnp.arange(95)
        return jnp.sum(jnp.where((place >= start - 1) & (place < length - 1), own, 0.0))

    def of_all(params):
        found = [likelihood(params, *each) for each in encoded]
        values = np.array([float(value) for value, _ in found]).reshape(-1, 2)
        return values, [gradient for _, gradient in found]

    return of_all


def moved(params, seed: int = 1):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return structure.unflatten(
        [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


@pytest.mark.thorough
def test_the_loss_and_its_gradient_are_those_of_equation_7_also_in_microbatches(tuned, source):
    _, experiment = dpo(tuned, source)
    start = jax.device_get(opening.load(tuned)[1])
    params, beta, of_all = moved(start), experiment.config.loss.beta, alone(experiment)
    (log_p, gradients), (log_q, _) = of_all(params), of_all(start)
    np.testing.assert_allclose(experiment.reference("train"), log_q, rtol=1e-5)
    margins = beta * (log_p - log_q) @ [1.0, -1.0]
    rows = experiment.data.rows("train")
    batch = rows.batch(np.array([*range(len(rows)), *[-1] * (len(rows) % 2)]))
    terms = jax.jit(lambda p: experiment.loss(p, batch, jax.random.key(0), True))(params)
    assert float(terms["loss"].weight) == len(margins)
    wanted = {
        "loss": np.log1p(np.exp(-margins)).mean(),
        "accuracy": (margins > 0).mean(),
        "margin": margins.mean(),
    }
    assert 0 < wanted["accuracy"] < 1 and margins.std() > 0.05
    for name, value in wanted.items():
        assert float(terms[name].mean) == pytest.approx(value, abs=2e-5), name
    # The gradient, as below equation 7: -beta sigmoid(-m) (grad log p(y_w | x) - grad log p(y_l | x)).
    expected = jax.tree.map(jnp.zeros_like, params)
    for margin, better, worse in zip(margins, gradients[::2], gradients[1::2], strict=True):
        scale = -beta / (1 + math.exp(margin)) / len(margins)
        expected = jax.tree.map(lambda e, b, w, s=scale: e + s * (b - w), expected, better, worse)
    for parts in (1, 2):
        step = make_train_step(experiment, optax.sgd(1.0), seed=0, microbatches=parts)
        new, _ = jax.jit(step)(State.create(params, optax.sgd(1.0), False, None), batch)
        errors = jax.tree.map(lambda old, new, e: old - new - e, params, new.params, expected)
        assert float(optax.tree.norm(errors) / optax.tree.norm(expected)) < 1e-3


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["simpo", "dpo_norm"])
def test_normalised_losses_divide_by_the_tokens_of_each_answer(kind, tuned, source):
    """By brute force; the margin gamma is asked for, and SimPO has no reference."""
    _, experiment = dpo(tuned, source, f"loss.kind={kind}", "loss.gamma=0.4", "loss.beta=1.5")
    start = jax.device_get(opening.load(tuned)[1])
    params, of_all, data = moved(start), alone(experiment), experiment.data
    log_p, log_q = of_all(params)[0], of_all(start)[0]
    talks = [talk for i in range(len(data.source("train"))) for talk in data.source("train").conversations(i)]
    counts = np.array([data.chat.encode(talk, last_only=True)[1].sum() for talk in talks]).reshape(-1, 2)
    assert (counts[:, 0] != counts[:, 1]).any()
    margins = 1.5 * ((log_p - (0 if kind == "simpo" else log_q)) / counts) @ [1.0, -1.0]
    batch = data.rows("train").batch(np.arange(len(data.rows("train"))))
    terms = jax.jit(lambda p: experiment.loss(p, batch, jax.random.key(0), True))(params)
    assert float(terms["loss"].mean) == pytest.approx(np.log1p(np.exp(0.4 - margins)).mean(), abs=2e-5)
    assert float(terms["margin"].mean) == pytest.approx(margins.mean(), abs=2e-5)
    assert ("reference" in data.contents()) == (kind != "simpo") == bool(batch["reference"].any())


@pytest.mark.thorough
def test_the_reference_is_the_model_as_training_begins_on_any_mesh_and_with_adapters(tuned, source):
    plain = dpo(tuned, source)[1].reference("train")
    for keys in (
        ["model.lora_rank=2", "model.lora_layers=.", "optimizer.train_only=lora"],
        ["parallel.mesh.fsdp=2", "parallel.mesh.tensor=2", "parallel.mesh.data=2"],
    ):
        run, experiment = dpo(tuned, source, *keys)
        with run.placed():
            found = experiment.reference("train")
            state, batch = run.first_state(), run.put(run.loader.batch_at(0))
            terms = jax.jit(lambda *given, e=experiment: e.loss(*given, jax.random.key(0), False))(
                state.params, batch
            )
        np.testing.assert_allclose(found, plain, rtol=1e-4)
        assert float(terms["loss"].mean) == pytest.approx(math.log(2), abs=1e-4)
        assert abs(float(terms["margin"].mean)) < 1e-4


@pytest.mark.thorough
def test_the_reference_attends_to_what_the_model_attends_to_in_every_stage(tuned, source, tmp_path, capfd):
    """At a rate of 0 the model stays the reference, so each loss is ln 2, also of a run that is resumed."""
    until = '--config.train.until={"window": {"1": 3, "3": 8}, "batch_size": {"2": 16}}'
    keys = [f"--config.initialize_from={tuned}", "--config.train.log_every=1", until]
    keys += ["--config.optimizer.learning_rate=0", "--config.optimizer.schedule=constant"]
    keys += ["--config.train.batch_size=8", "--config.optimizer.warmup_steps=0"]
    for steps in (2, 4):
        more = f"--config.train.steps={steps}"
        assert train("dpo", tmp_path / "run", source, *keys, more) == 0, capfd.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses == pytest.approx([math.log(2)] * 4, abs=1e-4)
    assert [line["train/window"] for line in lines if "train/loss" in line][:3] == [3, 8, 8]


@pytest.mark.thorough
def test_a_run_goes_on_as_if_it_had_not_stopped_and_only_with_its_reference(tuned, source, tmp_path, capfd):
    keys = [
        f"--config.initialize_from={tuned}",
        "--config.model.lora_rank=2",
        "--config.model.lora_layers=query|feed_forward/up",
        "--config.optimizer.train_only=lora",
        "--config.model.dtype=bfloat16",
        "--config.parallel.mesh.fsdp=2",
        "--config.parallel.microbatches=2",
        "--config.train.batch_size=16",
        "--config.train.steps=4",
        "--config.train.checkpoint_every=2",
        "--config.train.keep_last=2",
    ]
    assert train("dpo", tmp_path / "whole", source, *keys) == 0, capfd.readouterr().err
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "4")
    assert launch.main([f"--workdir={tmp_path}/again"]) == 0, capfd.readouterr().err
    whole, again = (runs.state(tmp_path / name) for name in ("whole", "again"))
    jax.tree.map(np.testing.assert_array_equal, whole, again)
    frozen = traverse_util.flatten_dict(jax.device_get(opening.load(tuned)[1]), sep="/")
    for path, value in traverse_util.flatten_dict(whole.params, sep="/").items():
        assert "lora" in path or np.array_equal(value, frozen[path])
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/loss", "eval/accuracy", "eval/margin", "train/margin"} <= metrics[-1].keys()
    capfd.readouterr()
    assert launch.main([f"--workdir={tmp_path}/whole", "--mode=evaluate"]) == 0
    loss = runs.measured(capfd.readouterr().out)["eval/loss"]
    assert loss == pytest.approx(metrics[-1]["eval/loss"], abs=1e-4)
    other = tmp_path / "other"
    assert train("finetune_chat", other, source, f"--config.initialize_from={tuned}") == 0
    capfd.readouterr()
    more = [f"--config.initialize_from={other}", "--config.train.steps=6"]
    assert launch.main([f"--workdir={tmp_path}/whole", *more]) == 2


def as_messages(source: str, folder, form: str) -> str:
    """The pairs of a source as lists of messages, as objects, or with answers after the prompt."""
    changed = []
    for line in Path(source.removeprefix("jsonl:")).read_text().splitlines():
        pair = json.loads(line)
        asked = {"role": "user", "content": pair["prompt"]}
        answers = {k: {"role": "assistant", "content": pair[k]} for k in ("chosen", "rejected")}
        if form == "lists":
            answers = {name: [answer] for name, answer in answers.items()}
        if form == "whole":
            answers = {name: [asked, answer] for name, answer in answers.items()}
        changed.append({"prompt": asked if form == "objects" else [asked], **answers})
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in changed))
    return f"jsonl:{folder}/a.jsonl"


@pytest.mark.parametrize("form", ["lists", "objects", "whole"])
def test_pairs_of_messages_are_the_pairs_of_their_texts(tuned, source, tmp_path, form):
    rows = [
        dpo(tuned, data, f"data.validation_source={data}")[1].data.pairs("train")
        for data in (source, as_messages(source, tmp_path, form))
    ]
    assert rows[0].records == rows[1].records == 48
    for text, messages in zip(*(rows.batch(np.arange(len(rows))).values() for rows in rows), strict=True):
        np.testing.assert_array_equal(text, messages)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dpo", "simpo"])
def test_two_processes_learn_preferences_as_one_does(tuned, source, tmp_path, kind):
    """Also the reference, which is computed by both for a cache that neither has; pairs are messages."""
    pairs, found = as_messages(source, tmp_path / "data", "lists"), []
    for name, run in {"one": lambda *command: launch.main([*command]), "two": together}.items():
        keys = {
            "initialize_from": tuned,
            "loss.kind": kind,
            "data.source": pairs,
            "data.sequence_length": 192,
            "data.cache_dir": tmp_path / f"cache of {name}",
            "optimizer.name": "sgd",
            "optimizer.clip_norm": 0,
            "optimizer.weight_decay": 0,
            "optimizer.schedule": "constant",
            "optimizer.learning_rate": 0.5,
            "optimizer.warmup_steps": 0,
            "train.steps": 3,
            "train.log_every": 1,
        }
        flags = [f"--config.{key}={value}" for key, value in keys.items()]
        run("--config=configs/dpo.py:tiny", f"--workdir={tmp_path}/{name}", *flags)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["train/loss"] for line in lines if "train/loss" in line]
        found.append((losses, runs.state(tmp_path / name).params))
    (losses, one), (of_two, two) = found
    assert len(losses) == 3 and losses[0] != losses[2]
    np.testing.assert_allclose(of_two, losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, two)


@pytest.mark.thorough
def test_a_conversation_goes_on_in_prediction(tuned, tmp_path, capfd):
    predict = [f"--workdir={tuned}", "--mode=predict", "--temperature=0"]
    capfd.readouterr()
    answers = []
    for prompt in ("and 1?", '[{"role": "user", "content": "and 1?"}]', f"{TALK[:-1]}, {AGAIN}]"):
        assert launch.main([*predict, f"--prompt={prompt}"]) == 0, capfd.readouterr().err
        answers.append(capfd.readouterr().out)
    assert answers[0] == answers[1] and answers[0]
    (tmp_path / "a.txt").write_text('{"messages": [{"role": "user", "content": "and 1?"}]}\n' + TALK + "\n")
    assert launch.main([*predict, f"--input={tmp_path}/a.txt"]) == 2
    assert f"{tmp_path}/a.txt:2 the conversation ends with an answer" in capfd.readouterr().err
    assert launch.main([*predict, f"--input=jsonl:{tmp_path}/b.jsonl"]) == 2
    (tmp_path / "b.jsonl").write_text(f'{{"messages": {TALK}}}\n')
    capfd.readouterr()
    assert launch.main([*predict, f"--input=jsonl:{tmp_path}/b.jsonl"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1


@pytest.mark.thorough
def test_scores_are_of_the_answer_with_its_end(tuned):
    run, params = opening.load(tuned)
    data, model = run.experiment.data, run.experiment.model
    logits_of = jax.jit(lambda params, tokens: model.apply({"params": params}, tokens))
    pairs = [("what is 3 and 3?", "6"), ("what is 3 and 3?", "it is 6, ünd so ön")]
    found = [*run.experiment.score(params, pairs)]
    for (text, answer), score in zip(pairs, found, strict=True):
        talk = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        ids, answers = data.chat.encode(talk)
        padded = np.pad(ids, (0, 96 - len(ids)))[None]
        log_p = jax.nn.log_softmax(logits_of(params, padded)[0, :, : model.vocab_size], axis=-1)
        own = [float(log_p[i - 1, ids[i]]) for i in np.flatnonzero(answers)]
        assert score.tokens == len(own)
        assert score.log_likelihood == pytest.approx(sum(own), abs=1e-3)


@pytest.mark.thorough
def test_a_conversation_that_begins_with_its_answer_leaves_nothing_to_answer(tuned, tmp_path, capfd):
    alone = [{"role": "assistant", "content": "hello"}]
    lines = [json.dumps({"messages": messages}) for messages in (alone, json.loads(TALK))]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    source = f"jsonl:{tmp_path}/a.jsonl"
    run = opening.reopen_run(tuned, overrides=[("data.validation_source", source)])
    assert run.experiment.example_flags() == ["--prompt=what is 1 and 1?"]
    assert launch.main([f"--workdir={tuned}", "--mode=predict", f"--input={source}"]) == 2
    assert f"{tmp_path}/a.jsonl:1: no message before the last answer" in capfd.readouterr().err


@pytest.mark.thorough
def test_an_exported_model_answers_in_transformers(tuned, tmp_path, capfd):
    transformers, torch = map(pytest.importorskip, ("transformers", "torch"))
    assert launch.main(["--mode=export", f"--workdir={tuned}", f"--to={tmp_path / 'out'}"]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    run, params = opening.load(tuned)
    question = json.loads(TALK)[:1]
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    asked = tokenizer.apply_chat_template(question, **options)
    assert asked["input_ids"][0].tolist() == run.experiment.data.chat.prompt(question)
    said = model.generate(**asked, max_new_tokens=24, do_sample=False)[0, asked["input_ids"].shape[1] :]
    capfd.readouterr()
    predict = ["--mode=predict", f"--prompt={question[0]['content']}", "--temperature=0"]
    assert launch.main([f"--workdir={tuned}", *predict, "--max_new_tokens=24"]) == 0
    assert tokenizer.decode(said, skip_special_tokens=True) == capfd.readouterr().out[:-1]
    with torch.no_grad():
        theirs = model(asked["input_ids"]).logits.numpy()
    ours = run.experiment.model.apply({"params": params}, asked["input_ids"].numpy())
    np.testing.assert_allclose(ours[..., : theirs.shape[-1]], theirs, atol=1e-4 * np.abs(theirs).max())
    flags = [f"--to={tmp_path / 'gguf'}", "--format=gguf"]
    gguf = pytest.importorskip("gguf")
    assert launch.main(["--mode=export", f"--workdir={tuned}", *flags]) == 0
    fields = gguf.GGUFReader(tmp_path / "gguf" / "model.gguf").fields
    assert fields["tokenizer.chat_template"].contents() == run.experiment.data.chat.template.source
