"""Several processes on one machine: what goes wrong in a run of them, and with how many it goes on."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import launch
from tests import runs
from tests.faults.test_rollback import spoil
from tests.test_dead_processes import PROGRAM as MEET

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

SPOILT = range(4, 6)

PROGRAM = """
import sys
import pytest
import launch
from tests.faults.test_rollback import spoil
spoil(pytest.MonkeyPatch(), range(4, 6))
sys.exit(launch.main(sys.argv[1:]))
"""

OPTIONS = (
    "--config.optimizer.name=sgd",  # Adam makes whole steps of a gradient that is only rounding
    "--config.optimizer.schedule=constant", "--config.optimizer.decay_steps=0",
    "--config.optimizer.learning_rate=0.5", "--config.model.dropout=0.1", "--config.train.log_every=1",
    "--config.train.evaluate_batches=0", "--config.train.checkpoint_every=2", "--config.train.keep_last=9",
    "--config.train.max_skipped=2", "--config.train.rollbacks=1",
)  # fmt: skip


def together(count: int, program: str, *arguments: str) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of so many processes of one device."""
    meeting = [f"--coordinator=localhost:{runs.free_port()}", f"--num_processes={count}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments, *meeting, f"--process_id={number}"],
            cwd=runs.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]


def test_a_rollback_and_other_numbers_of_processes_change_no_loss(tmp_path, monkeypatch, capfd):
    """Two processes go back from steps that are spoilt, four go on with another mesh, and one ends the run:
    as one process does alone, to 1e-5."""
    source, folder = runs.write_corpus(tmp_path / "corpus"), tmp_path / "several"
    lengths = [f"--config.train.steps={steps}" for steps in (6, 8, 10)]
    mesh = ("--config.parallel.mesh.data=2", "--config.parallel.mesh.fsdp=2")
    for ended in (
        together(2, PROGRAM, *runs.tiny(source, folder, *OPTIONS, lengths[0])),
        together(4, PROGRAM, f"--workdir={folder}", lengths[1], *mesh),
    ):
        assert [code for code, _, _ in ended] == [0] * len(ended), ended[0][2][-3000:]
    spoil(monkeypatch, SPOILT)
    one = ("--config.parallel.mesh.data=-1", "--config.parallel.mesh.fsdp=1")
    assert launch.main([f"--workdir={folder}", lengths[2], *one]) == 0
    assert launch.main(runs.tiny(source, tmp_path / "one", *OPTIONS, lengths[0])) == 0
    for length in lengths[1:]:
        assert launch.main([f"--workdir={tmp_path}/one", length]) == 0
    undone = [json.loads((path / "rollbacks.json").read_text()) for path in (folder, tmp_path / "one")]
    assert undone[0] == undone[1] and [(x["since"], x["to"]) for x in undone[0]] == [(4, 2)]
    rows = [np.load(folder / "diverged" / f"00000004-{number}.npz")["tokens"] for number in range(2)]
    assert np.array_equal(
        np.concatenate(rows), np.load(tmp_path / "one" / "diverged" / "00000004.npz")["tokens"]
    )
    found, expected = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (folder, tmp_path / "one")
    )
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [*range(1, 11)]
    compared = 0
    for a, b in zip(found, expected, strict=True):
        for name in ("train/loss", "eval/loss", "train/skipped_steps"):
            if name in b:
                assert a[name] == pytest.approx(b[name], rel=1e-5)
                compared += b[name] is not None
    assert compared > 15


DYING = """
    import os, signal, threading
    from jax.experimental import multihost_utils
    import launch
    import numpy as np
    multihost_utils.sync_global_devices("both have imported")
    if number == 1:
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            multihost_utils.process_allgather(np.ones(3))
    except Exception as error:
        launch.leave_the_dead(error)
"""


def test_the_process_that_was_killed_is_named_in_a_line(tmp_path):
    body = textwrap.dedent(MEET).partition("if number == 1:")[0]
    program = body.replace("int(sys.argv[1])", "int(sys.argv[3][-1])").replace(
        "sys.argv[2]", "sys.argv[1].rpartition(':')[2]"
    )
    (code, _, error), (killed, _, _) = together(2, program + textwrap.dedent(DYING))
    assert (code, killed) == (1, -9), error
    line = error.splitlines()[-1]
    assert line.startswith("error: process 1 on ") and line.endswith("; the same command resumes")
    assert "Traceback" not in error
