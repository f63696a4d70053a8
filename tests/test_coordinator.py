"""`launch.py --coordinator`: two processes, started as README says, train the run that one process trains."""

import json
import os

import jax
import numpy as np
import pytest

import launch
from tests import runs
from workdir import opening

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

STEPS, TOKENS = 4, 8 * 32
OPTIONS = [
    "--config.optimizer.name=sgd",  # Adam and Muon make whole steps of a gradient that is only rounding
    "--config.optimizer.schedule=constant",
    "--config.optimizer.learning_rate=0.5",
    "--config.model.dropout=0.1",
    "--config.train.log_every=1",
    "--config.train.evaluate_every=2",
    "--config.train.evaluate_batches=0",  # all, as --mode=evaluate does
]


def together(*arguments: str) -> list[str]:
    """What each of two processes of one device prints, for the same command."""
    meeting = [f"--coordinator=localhost:{runs.free_port()}", "--num_processes=2"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    processes = [runs.start([*arguments, *meeting, f"--process_id={i}"], env=environment) for i in range(2)]
    try:
        said = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, said, strict=True):
        assert process.returncode == 0, error[-3000:]
    return [out for out, _ in said]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, source):
    """The run of two processes, which stop half-way and continue, what they printed, and the run of one."""
    two, one = (tmp_path_factory.mktemp(name) / "run" for name in ("two", "one"))
    first = together(*runs.tiny(source, two, *OPTIONS, f"--config.train.steps={STEPS // 2}"))
    second = together(f"--workdir={two}", f"--config.train.steps={STEPS}")
    assert launch.main(runs.tiny(source, one, *OPTIONS, f"--config.train.steps={STEPS}")) == 0
    return two, (first, second), one


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    wanted = ("train/loss", "train/gradient_norm", "eval/loss", "eval/bits_per_byte")
    return [line["step"] for line in lines], [line[name] for line in lines for name in wanted if name in line]


def test_two_processes_train_stop_and_go_on_as_one_does(folders):
    """Each has half of the rows of every batch. Sums over a batch's tokens are added up in another order, by
    which they may differ by as many units of rounding as there are tokens."""
    two, _, one = folders
    (steps, found), (expected_steps, expected) = metrics(two), metrics(one)
    assert steps == expected_steps == list(range(1, STEPS + 1)) and len(found) > 2 * STEPS
    rounding = TOKENS * np.finfo(np.float32).eps / 2
    np.testing.assert_allclose(found, expected, rtol=rounding)
    states = []
    for folder in (two, one):
        run = opening.reopen_run(folder)
        with run.checkpoints(write=False) as checkpoints:
            states.append(jax.device_get(checkpoints.restore(run.abstract)))
    for a, b in zip(jax.tree.leaves(states[0].params), jax.tree.leaves(states[1].params), strict=True):
        np.testing.assert_allclose(a, b, atol=rounding * np.abs(b).max())


@pytest.mark.parametrize("axis", ["tensor", "context"])
def test_processes_that_share_the_rows_of_a_batch(tmp_path, source, folders, axis):
    """An axis over both of them: each reads all rows, and has a part of the model or of each sequence."""
    over = ["--config.parallel.mesh.data=1", f"--config.parallel.mesh.{axis}=2"]
    together(*runs.tiny(source, tmp_path / "run", *OPTIONS, *over, f"--config.train.steps={STEPS}"))
    (_, found), (_, expected) = metrics(tmp_path / "run"), metrics(folders[2])
    np.testing.assert_allclose(found, expected, rtol=TOKENS * np.finfo(np.float32).eps)


def test_only_the_first_process_speaks(folders):
    two, printed, _ = folders
    for number, (first, second) in enumerate(printed):
        assert f"on 2 x cpu, from step {number * STEPS // 2} to" in first
        assert str(two) not in second


def test_only_the_first_process_prints_what_is_measured_and_written(folders):
    two, _, _ = folders
    first, second = together(f"--workdir={two}", "--mode=evaluate")
    assert first.count("eval/loss ") == 1 and "eval/" not in second
    first, second = together(f"--workdir={two}", "--mode=predict", "--prompt=alpha", "--max_new_tokens=2")
    assert first.count("alpha") == 1 and "alpha" not in second


def test_what_two_processes_trained_one_evaluates_and_uses(capfd, folders):
    two, _, _ = folders
    capfd.readouterr()
    assert launch.main([f"--workdir={two}", "--mode=evaluate"]) == 0
    found = dict(line.split()[:2] for line in capfd.readouterr().out.splitlines() if line.startswith("eval/"))
    last = json.loads((two / "metrics.jsonl").read_text().splitlines()[-1])
    assert float(found["eval/loss"]) == pytest.approx(last["eval/loss"], rel=1e-5)
    assert launch.main([f"--workdir={two}", "--mode=predict", "--prompt=alpha", "--max_new_tokens=2"]) == 0
    assert capfd.readouterr().out.startswith("alpha")


def test_processes_that_share_each_sequence_score_as_one_does(capfd, folders):
    """XLA may leave a part of the results on each of them."""
    score = [f"--workdir={folders[0]}", "--mode=score", "--prompt=alpha\tbeta gamma"]
    first, second = together(*score, "--config.parallel.mesh.data=1", "--config.parallel.mesh.context=2")
    capfd.readouterr()
    assert launch.main(score) == 0
    (expected, found) = (out.splitlines()[-1].split("\t") for out in (capfd.readouterr().out, first))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5) and found[1:] == expected[1:]
    assert "\t" not in second


def test_processes_that_share_parameters_write_targets(tmp_path):
    """XLA may leave a part of what beam search finds on each of them."""
    over = ["--config.parallel.mesh.data=1", "--config.parallel.mesh.fsdp=2"]
    first, _ = together("--config=configs/translation.py:tiny", f"--workdir={tmp_path / 'run'}", *over)
    assert "\nwritten: " in first


@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_processes_learn_preferences_as_one_does(tmp_path, axis):
    """The reference is computed by all of them, from a warm start that is sharded over them; when they
    continue it is in their cache, and compared."""
    chat, steps = tmp_path / "chat", f"--config.train.steps={STEPS}"
    assert launch.main(["--config=configs/finetune_chat.py:tiny", f"--workdir={chat}"]) == 0
    found = {}
    for name in ("one", "two"):
        given = ["--config=configs/dpo.py:tiny", f"--workdir={tmp_path / name}", *OPTIONS]
        given += [f"--config.initialize_from={chat}", f"--config.data.cache_dir={tmp_path / f'{name}-cache'}"]
        if name == "one":
            assert launch.main([*given, steps]) == 0
        else:
            over = ["--config.parallel.mesh.data=1", f"--config.parallel.mesh.{axis}=2"]
            together(*given, *over, f"--config.train.steps={STEPS // 2}")
            together(f"--workdir={tmp_path / name}", steps)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        keys = ("train/loss", "train/margin", "train/gradient_norm", "eval/loss", "eval/margin")
        found[name] = [line.get(key) for line in lines for key in keys]
    assert len(found["one"]) == len(keys) * STEPS
    np.testing.assert_allclose(*(np.array(each, float) for each in found.values()), rtol=1e-4, atol=1e-4)
