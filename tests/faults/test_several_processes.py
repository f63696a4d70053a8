"""Several processes on one machine: what goes wrong in a run of them, and with how many it continues."""

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
    "--config.optimizer.schedule=constant",
    "--config.optimizer.learning_rate=0.5", "--config.model.dropout=0.1", "--config.train.log_every=1",
    "--config.train.evaluate_batches=0", "--config.train.checkpoint_every=2", "--config.train.keep_last=9",
    "--config.train.max_skipped=2", "--config.train.rollbacks=1",
)  # fmt: skip


def together(count: int, program: str, *arguments: str) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of that many processes of one device."""
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
    """One process starts, two continue, and back from steps that are spoilt, four continue with another mesh,
    and one ends the run: as one process does alone, to 1e-5."""
    source, folder = runs.write_corpus(tmp_path / "corpus"), tmp_path / "several"
    first, *lengths = [f"--config.train.steps={steps}" for steps in (2, 6, 8, 10)]
    mesh = ("--config.parallel.mesh.data=2", "--config.parallel.mesh.fsdp=2")
    assert launch.main(runs.tiny(source, folder, *OPTIONS, first)) == 0
    for ended in (
        together(2, PROGRAM, f"--workdir={folder}", lengths[0]),
        together(4, PROGRAM, f"--workdir={folder}", lengths[1], *mesh),
    ):
        assert [code for code, _, _ in ended] == [0] * len(ended), ended[0][2][-3000:]
    spoil(monkeypatch, SPOILT)
    one = ("--config.parallel.mesh.data=-1", "--config.parallel.mesh.fsdp=1")
    assert launch.main([f"--workdir={folder}", lengths[2], *one]) == 0
    assert launch.main(runs.tiny(source, tmp_path / "one", *OPTIONS, first)) == 0
    for length in lengths:
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


FULL = """
import errno, os, sys
import launch
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.storage import AppendFile

WHO = 1
number, written, saved = int(sys.argv[-1][-1]), 0, []
write, save, room = AppendFile.write, Checkpoints.save, Checkpoints.room

def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

def failing_write(self, piece, at=None):  # what the first process logs, for some time
    global written
    written += 1
    return full("metrics") if 3 <= written < 9 else write(self, piece, at)

def failing_room(self):  # the disk of both, for the first checkpoint
    saved.append(None)
    return 0 if len(saved) == 1 else room(self)

def failing_save(self, step, *arguments):  # that of one of them, for the second
    if step == 6 and number == WHO:
        full(self.directory)
    save(self, step, *arguments)

AppendFile.write, Checkpoints.room, Checkpoints.save = failing_write, failing_room, failing_save
sys.exit(launch.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("who", (0, 1))
def test_full_disks_of_two_processes(tmp_path, who):
    """Where the disk that both write to is full, and where what is logged cannot be written, training goes
    on; where that of one of them fails while it saves, both end, and the one that failed says why."""
    source, folder = runs.write_corpus(tmp_path / "corpus"), tmp_path / "run"
    command = runs.tiny(source, folder, *OPTIONS, "--config.train.steps=90")
    ended = together(2, FULL.replace("WHO = 1", f"WHO = {who}"), *command)
    (code, _, error), (failed, _, why) = ended[0], ended[who]
    assert (code, failed) == (1, 1), error[-2000:]
    other = ended[1 - who][2]
    line = other.splitlines()[-1]
    assert line.startswith(f"error: process {who} on ") and "No space left on device" in line, other[-2000:]
    assert why.splitlines()[-1] == (
        f"error: {folder}/checkpoints: step 6 could not be saved (No space left on device); the last one is "
        "of step 4"
    )
    for said in (
        "step 2 could not be saved (there is not room enough for it); there is none before it",
        "warning: step 4 is saved again",
        "MetricsFile: values since step",
        "MetricsFile: all values are written again",
    ):
        assert error.count(said) == 1, error
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps[:5] == [1, 2, 3, 4, 5]
    assert "Traceback" not in why


BROKEN = """
import sys
import launch
from transformer.training.callbacks import StepCallbacks

number, after = int(sys.argv[-1][-1]), StepCallbacks.after

def breaking(self, info):
    if info.step == 4 and number == WHO:
        raise ZeroDivisionError("by design")
    return after(self, info)

StepCallbacks.after = breaking
sys.exit(launch.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("who", (0, 1))
def test_an_unexpected_error_of_one_process_ends_all_at_once(tmp_path, who):
    """With the whole traceback of the one and a line of the other, without waiting for a heartbeat."""
    source, folder = runs.write_corpus(tmp_path / "corpus"), tmp_path / "run"
    command = runs.tiny(source, folder, *OPTIONS, "--config.train.steps=90", "--heartbeat_seconds=300")
    ended = together(2, BROKEN.replace("WHO", str(who)), *command)
    assert [code for code, _, _ in ended] == [1, 1], ended
    assert "ZeroDivisionError: by design" in ended[who][2] and "Traceback" in ended[who][2]
    line = ended[1 - who][2].splitlines()[-1]
    assert line.startswith(f"error: process {who} on ") and "(by design)" in line, line
    assert "Traceback" not in ended[1 - who][2]


MISTAKEN = """
import sys
import launch
from commands import config
from transformer.errors import UserError

run = config.run

def ending(*arguments):
    if int(sys.argv[-1][-1]) in WHO:
        raise ERROR
    return run(*arguments)

config.run = ending
sys.exit(launch.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        ("UserError('by design')", 2, "error: by design"),
        ("KeyboardInterrupt", 130, "interrupted"),
        ("OSError(28, 'full by design', 'config.json')", 1, "error: config.json: full by design"),
    ],
)
def test_a_mistake_a_full_disk_or_an_interrupt_of_one_process_ends_all_within_seconds(error, code, last):
    """With one line each, without JAX's messages; the same one where it is of all of them."""
    for who in ((1,), (0,), (0, 1)):
        program = MISTAKEN.replace("WHO", str(who)).replace("ERROR", error)
        ended = together(2, program, "--mode=config", "--config=configs/lm.py:tiny")
        assert [each for each, _, _ in ended] == [code if i in who else 1 for i in range(2)], ended
        lines = [said.splitlines()[-1] for _, _, said in ended]
        other = f"({last.removeprefix('error: ')}); give the same command again"
        for number, line in enumerate(lines):
            assert line == last if number in who else line.endswith(other), lines


@pytest.mark.parametrize("mode", ["batch", "export"])
def test_a_command_of_one_process_is_refused_on_all(tmp_path, mode):
    """Each would read its own rows of a batch, and none has all of a parameter that is sharded over them."""
    program = "import sys, launch; sys.exit(launch.main(sys.argv[1:]))"
    for code, _, said in together(2, program, f"--mode={mode}", f"--workdir={tmp_path}"):
        assert code == 2, said
        assert said.splitlines()[-1] == f"error: --mode={mode}: a command of one process, and 2 are started"


def test_a_reader_that_has_left_one_process_ends_all_within_seconds():
    program = MISTAKEN.replace("WHO", "(0,)").replace("ERROR", "BrokenPipeError")
    ended = together(2, program, "--mode=config", "--config=configs/lm.py:tiny")
    assert [code for code, _, _ in ended] == [0, 1], ended
    line = ended[1][2].splitlines()[-1]
    assert line.startswith("error: process 0 on ") and "(the reader of its output has left)" in line
    assert not any("Traceback" in said or "coordination" in said for _, _, said in ended), ended


DYING = """
    import os, signal, threading
    from jax.experimental import multihost_utils
    from commands.support import ending
    import numpy as np
    multihost_utils.sync_global_devices("both have imported")
    if number == 1:
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            multihost_utils.process_allgather(np.ones(3))
    except Exception as error:
        ending.leave_the_dead(error)
"""


def test_the_process_that_was_killed_is_named_in_a_line(tmp_path):
    body = textwrap.dedent(MEET).partition("if number == 1:")[0]
    program = body.replace("int(sys.argv[1])", "int(sys.argv[3][-1])").replace(
        "sys.argv[2]", "sys.argv[1].rpartition(':')[2]"
    )
    (code, _, error), (killed, _, _) = together(2, program + textwrap.dedent(DYING))
    assert (code, killed) == (1, -9), error
    line = error.splitlines()[-1]
    assert line.startswith("error: process 1 on ") and line.endswith("; give the same command again")
    assert "Traceback" not in error
