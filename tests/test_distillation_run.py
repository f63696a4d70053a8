"""Runs of `distillation`: the teacher, the loss, drawn answers, resumed runs, meshes, mistakes."""

import json

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import launch
from experiments.policy.taught_step import TaughtStep
from tests import runs
from tests.experiments.test_divergences import expected
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

TINY = "configs/studies/rl/distillation.py:tiny"

SUPERVISED = "configs/studies/rl/supervised_problems.py:tiny"

EXACT = {"optimizer.name": "sgd", "optimizer.weight_decay": "0", "optimizer.clip_norm": "0"}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    records = [{"prompt": f"{i}+{7 * i}", "answer": f"{8 * i}"} for i in range(60)]
    file = tmp_path_factory.mktemp("data") / "a.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"jsonl:{file}"


@pytest.fixture(scope="module")
def teacher(source, tmp_path_factory, in_root) -> str:
    """A wider run of the same problems, whose parameters are not those that it began with."""
    folder, keys = tmp_path_factory.mktemp("teacher") / "run", {"model.d_model": "48", "train.steps": "3"}
    assert launch.main(flags(source, folder, keys, SUPERVISED)) == 0
    return str(folder)


def flags(source: str, workdir, keys: dict[str, str], config: str = TINY) -> list[str]:
    values = {"data.source": source, "optimizer.schedule": "constant", "train.log_every": "1"} | keys
    return [f"--config={config}", f"--workdir={workdir}", *(f"--config.{k}={v}" for k, v in values.items())]


def opened(source: str, folder, **keys: str):
    """A run without training, its first state and its first batch."""
    given = {"data.source": source} | {key.replace("__", "."): value for key, value in keys.items()}
    values = opening.read_to_train(TINY, [*given.items()])
    run = opening.open_run(opening.RunFolder(folder), opening.check_config(values, [*given.items()]))
    with run.placed():
        return run, run.first_state(), run.put(run.loader.batch_at(0))


@pytest.mark.parametrize("name", ["forward", pytest.param("reverse", marks=pytest.mark.thorough), "jsd"])
def test_the_loss_is_the_mean_over_the_tokens_of_answers(name, source, teacher, tmp_path):
    """Also in chunks, at another temperature, and with rows of padding."""
    keys = {"teacher": teacher, "loss__divergence": name, "loss__temperature": "1.7", "loss__beta": "0.3"}
    keys = keys if name == "jsd" else {k: v for k, v in keys.items() if k != "loss__beta"}
    run, state, batch = opened(source, tmp_path, **keys)
    batch = {key: np.asarray(x).copy() for key, x in batch.items()}
    batch["weights"][1] = 0
    e = run.experiment
    chunks = opened(source, tmp_path, **keys, loss__chunk_size="7")[0].experiment
    with run.placed():
        terms, in_chunks = (
            jax.jit(lambda p, e=e: e.loss(p, batch, jax.random.key(0), True))(state.params)
            for e in (e, chunks)
        )
        inputs = {"segments_bt": batch["segments"], "positions_bt": batch["positions"]}
        model, params = e.teacher
        both = ((e.model, state.params), (model, params))
        logits = [
            m.apply({"params": p}, batch["tokens"], **inputs)[..., : e.model.vocab_size] for m, p in both
        ]
    log_p, log_q = (log_softmax(np.float64(x) / 1.7, axis=-1) for x in logits)
    there = batch["weights"] > 0
    mean = 1.7**2 * expected(name, log_p, log_q, 0.3)[there].mean()
    assert float(terms["loss"].mean) == pytest.approx(mean, rel=1e-3) and mean > 1e-4
    assert float(in_chunks["loss"].mean) == pytest.approx(mean, rel=1e-3)
    own = np.take_along_axis(log_p, batch["targets"][..., None], axis=-1)[..., 0]
    assert float(terms["nll"].mean) == pytest.approx(-own[there].mean(), rel=1e-4)


def test_a_student_that_is_its_teacher_has_no_loss_and_no_gradient(source, teacher, tmp_path):
    for number, more in enumerate(({}, {"rollout__share": "1", "loss__divergence": "reverse"})):
        run, state, batch = opened(
            source, tmp_path / str(number), teacher=teacher, initialize_from=teacher, **more
        )
        with run.placed():
            before = jax.device_get(run.experiment.teacher[1])
            jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(state.params))
            state, metrics = run.train_step()(state, batch)
        assert abs(float(metrics["loss"].mean)) < 1e-6 and float(metrics["gradient_norm"].mean) < 1e-5
        assert float(metrics["nll"].mean) > 0.1


def test_the_teacher_never_changes_and_is_no_part_of_the_state(source, teacher, tmp_path):
    run, state, batch = opened(source, tmp_path, teacher=teacher, optimizer__learning_rate="0.1")
    with run.placed():
        before, start = jax.device_get((run.experiment.teacher[1], state.params))
        step = run.train_step()
        for _ in range(3):
            state, metrics = step(state, batch)
        after = jax.device_get(run.experiment.teacher[1])
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert float(metrics["gradient_norm"].mean) > 1e-4
    alike = jax.tree.map(np.array_equal, start, jax.device_get(state.params))
    assert not any(jax.tree.leaves(alike))
    assert 48 not in {n for x in jax.tree.leaves(state) for n in np.shape(x)}  # the teacher's width


def test_batches_have_answers_that_are_drawn_or_those_of_the_data(source, teacher, tmp_path):
    found = {}
    for share in ("1", "1e-9"):
        run, state, batch = opened(source, tmp_path, teacher=teacher, rollout__share=share)
        step = TaughtStep(run.experiment, run, None)
        with run.placed():
            rows, metrics = step._answered(state, batch)
        found[share] = {name: np.asarray(x) for name, x in rows.items()}
        assert float(metrics["drawn"].mean) == (share == "1") == ("length" in metrics)
    data, records = run.experiment.prompts, run.experiment.prompts.source("train")
    drawn, given = found.values()
    np.testing.assert_array_equal(drawn["records"], given["records"])
    for i, record in enumerate(given["records"].tolist()):
        tokens, learned = data.chat.encode(records.conversations(record)[0], last_only=True)
        np.testing.assert_array_equal(
            given["tokens"][i, : len(tokens)][: given["segments"][i].sum()],
            tokens[: given["segments"][i].sum()],
        )
        np.testing.assert_array_equal(given["targets"][i, : len(tokens) - 1], tokens[1:])
        np.testing.assert_array_equal(given["weights"][i, : len(tokens) - 1], learned[1:])
        n, start = int(drawn["weights"][i].sum()), int(drawn["lengths"][i])
        np.testing.assert_array_equal(np.flatnonzero(drawn["weights"][i]), start - 1 + np.arange(n))
        assert drawn["tokens"][i, :start].tolist() == given["tokens"][i, :start].tolist() and 0 < n <= 4
    assert not np.array_equal(drawn["targets"], given["targets"])


@pytest.mark.thorough
def test_meshes_and_microbatches_learn_the_same(source, teacher, tmp_path):
    for share in ("0", "1"):
        found = {}
        for name, keys in {
            "one": {},
            "parts": {"parallel.microbatches": "2"},
            "data": {"parallel.mesh.data": "2", "parallel.microbatches": "2", "loss.chunk_size": "8"},
            "fsdp": {"parallel.mesh.data": "1", "parallel.mesh.fsdp": "4"},
            "tensor": {"parallel.mesh.data": "2", "parallel.mesh.tensor": "2"},
        }.items():
            keys = {"parallel.mesh.data": "1", "rollout.share": share, "teacher": teacher} | EXACT | keys
            keys |= {"optimizer.learning_rate": "1", "train.steps": "3", "loss.divergence": "reverse"}
            assert launch.main(flags(source, tmp_path / share / name, keys)) == 0
            found[name] = runs.state(tmp_path / share / name).params
        for params in found.values():
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), params, found["one"]
            )


@pytest.mark.thorough
def test_a_resumed_run_is_the_run_that_was_not_stopped(source, teacher, tmp_path, capfd):
    """With both kinds of steps; from then on another teacher is refused."""
    keys = {"teacher": teacher, "rollout.share": "0.5", "train.checkpoint_every": "3"}
    assert launch.main(flags(source, tmp_path / "whole", keys | {"train.steps": "6"})) == 0
    assert launch.main(flags(source, tmp_path / "parts", keys | {"train.steps": "3"})) == 0
    assert launch.main(flags(source, tmp_path / "parts", keys | {"train.steps": "6"})) == 0
    whole, parts = (runs.state(tmp_path / name) for name in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert {line["train/drawn"] for line in lines if "train/drawn" in line} == {0.0, 1.0}
    other = {"model.d_model": "48", "train.steps": "5"}
    assert launch.main(flags(source, tmp_path / "other", other, SUPERVISED)) == 0
    keys = keys | {"teacher": str(tmp_path / "other"), "train.steps": "9"}
    capfd.readouterr()
    assert launch.main(flags(source, tmp_path / "parts", keys)) == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.thorough
def test_verify_reads_the_teacher_of_a_run_and_of_its_shadow(source, teacher, tmp_path, capfd):
    keys = {"teacher": teacher, "loss.divergence": "reverse", "parallel.microbatches": "2"}
    command = flags(source, "", keys | {"loss.chunk_size": "8", "model.dtype": "bfloat16"})
    assert launch.main(["--mode=verify", *(flag for flag in command if "--workdir" not in flag)]) == 0
    assert "within their bounds" in capfd.readouterr().out


@pytest.mark.thorough
def test_measured_layers_are_those_of_the_student(source, teacher, tmp_path):
    """Whose steps have the teacher's parameters as an argument and learn what plain ones learn."""
    found, measures = {}, {"train.log_norms": "True", "train.log_attention": "True", "train.log_every": "2"}
    for name, more in {"plain": {}, "measured": measures}.items():
        keys = {"teacher": teacher, "train.steps": "4", **more}
        assert launch.main(flags(source, tmp_path / name, keys)) == 0
        found[name] = runs.state(tmp_path / name).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *found.values())
    lines = [json.loads(line) for line in (tmp_path / "measured" / "metrics.jsonl").read_text().splitlines()]
    names = {name for line in lines for name in line}
    assert {"train/attention/entropy/blocks/0", "train/norms/activation/blocks/0"} <= names


def test_a_measuring_step_has_the_teacher_as_an_argument(source, teacher, tmp_path):
    run, state, batch = opened(source, tmp_path, teacher=teacher, train__log_norms="True")
    step = run.train_step()
    with run.placed():
        for program in (step.step.plain, step.step.measured):
            shapes = [
                x.shape for x in jax.tree.leaves(program.function.lower(state, batch, step.teacher).args_info)
            ]
            assert any(48 in shape for shape in shapes)
            constants = program.function.trace(state, batch, step.teacher).jaxpr.consts
            assert not any(48 in np.shape(x) for x in constants)


def test_mistakes_are_one_line_before_anything_is_written(source, teacher, tmp_path, capfd):
    for keys, message in (
        ({"teacher": str(tmp_path / "none")}, "config.teacher: "),
        ({"teacher": teacher, "data.tokenizer": "bytes"}, "has another tokenizer, "),
        ({"teacher": teacher, "data.sequence_length": "41", "model.max_length": "41"}, "reads 40 tokens"),
        ({"teacher": teacher, "loss.z_loss": "0.1"}, "config.loss.z_loss: 0.1 with a teacher; expected 0.0"),
        ({"rollout.share": "0.5"}, "config.rollout.share: 0.5 without a teacher"),
        (
            {"teacher": teacher, "loss.divergence": "kl"},
            "config.loss.divergence: 'kl'; expected one of 'forward'",
        ),
    ):
        assert launch.main(flags(source, tmp_path / "run", keys)) == 2
        error = capfd.readouterr().err
        assert message in error and error.count("error:") == 1 and "Traceback" not in error
        assert not (tmp_path / "run").exists()
    plan = [f"--config={TINY}", f"--config.data.source={source}", f"--config.teacher={teacher}"]
    assert launch.main(["--mode=plan", *plan]) == 2
    assert f"config.teacher: {teacher} is not read by" in capfd.readouterr().err
