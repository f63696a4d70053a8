"""Two processes on one machine, each with two devices, talking over Gloo."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest

from tests import runs
from tests.training import test_loop
from tests.training.toy import Loader
from transformer.training.checkpoints.checkpoint import Checkpoints

PROGRAM = """
    import os, sys, time
    import jax
    from jax.experimental import multihost_utils
    jax.config.update("jax_num_cpu_devices", 2)
    MINUTES = 1e-9, 1e9  # a clock that is late decides for both: else one would wait for the other in a save
    process, port, workdir, steps = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    jax.distributed.initialize(f"localhost:{port}", 2, process, heartbeat_timeout_seconds=10)
    from tests.training import test_loop
    from tests.training.toy import Loader
    from transformer.run_folder import RunFolder
    from transformer.training.checkpoints.checkpoint import Checkpoints
    from transformer.training.extras.stragglers import Stragglers
    from transformer.training.hooks import Hook
    from transformer.training.logging.writers import make_writers

    class Evaluation(Hook):  # waits for a file, then for the other process
        done = 0

        def __call__(self, step, state, metrics):
            if process == 0:
                open(f"{workdir}/evaluating", "w").close()
            while not os.path.exists(f"{workdir}/continue"):
                time.sleep(0.01)
            multihost_utils.sync_global_devices("evaluation")
            self.done = step

    class Half(Loader):
        def iterate(self, start):
            for batch in super().iterate(start):
                time.sleep(0.01)
                yield {name: rows[4 * process : 4 * process + 4] for name, rows in batch.items()}

    evaluation = Evaluation(int(sys.argv[5]))
    with Checkpoints(workdir + "/checkpoints", keep_last=1) as checkpoints:
        abstract = test_loop.toy()[1]
        state = checkpoints.restore(abstract) if checkpoints.steps() else None
        writers = make_writers(RunFolder(workdir), 0 if state is None else int(state.step))
        state, reason = test_loop.run(
            steps, state, Half(), checkpoints=checkpoints, writers=writers, checkpoint_every=10,
            checkpoint_minutes=MINUTES[process], hooks=[evaluation] if evaluation.every else [Stragglers(5)],
        )
    print(process, reason, int(state.step), len(writers), evaluation.done)
"""


def launch(workdir, steps, evaluate_every=0):
    """Both processes; evaluations wait for the file "continue" in the folder. 0: there are none."""
    port = str(runs.free_port())
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-c", textwrap.dedent(PROGRAM)),
                *map(str, (process, port, workdir, steps, evaluate_every)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]


def finish(processes):
    try:
        results = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, results, strict=True):
        assert process.returncode == 0, err[-3000:]
    return [out.splitlines() for out, _ in results]


def wait(there):
    """Until something is there, for at most two minutes."""
    deadline = time.time() + 120
    while not there() and time.time() < deadline:
        time.sleep(0.05)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "receivers"), [("SIGINT", [1]), ("SIGUSR1", [0]), ("SIGUSR2", [1]), ("SIGHUP", [0, 1])]
)
def test_processes_finish_an_evaluation_and_stop_at_one_step(tmp_path, name, receivers):
    """A signal to one of them or to both, and a second SIGTERM, change nothing else: a process that left the
    evaluation would leave the other in a collective."""
    processes = launch(tmp_path, 100_000, evaluate_every=7)
    wait((tmp_path / "evaluating").exists)
    for receiver in receivers:
        processes[receiver].send_signal(getattr(signal, name))
        processes[receiver].send_signal(signal.SIGTERM)
    (tmp_path / "continue").touch()
    first, second = finish(processes)
    assert second[-1].split()[1:] == first[-1].replace(" 2 ", " 0 ").split()[1:]
    _, reason, stopped, _, evaluated = first[-1].split()
    assert reason == name and first[-2] == f"{name}: saved step {stopped} and leaving"
    assert 7 <= int(evaluated) == 7 * (int(stopped) // 7)
    assert os.listdir(tmp_path / "checkpoints") == [stopped]


@pytest.mark.thorough
def test_processes_stop_together_and_their_checkpoint_fits_one_process(tmp_path):
    """A signal to one of them ends both at the same step; what follows is the run of a single process."""
    processes = launch(tmp_path, 100_000)
    metrics = tmp_path / "metrics.jsonl"
    wait(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3)
    processes[1].send_signal(signal.SIGTERM)
    first, second = finish(processes)
    stopped = int(first[-1].split()[2])
    # Before these lines Gloo speaks, of itself.
    assert first[-2:] == [f"SIGTERM: saved step {stopped} and leaving", f"0 SIGTERM {stopped} 2 0"]
    assert second[-1] == f"1 SIGTERM {stopped} 0 0"
    assert "leaving" not in "".join(second)
    assert os.listdir(tmp_path / "checkpoints") == [str(stopped)]

    assert [out[-1] for out in finish(launch(tmp_path, stopped + 3))] == [
        f"0 finished {stopped + 3} 2 0",
        f"1 finished {stopped + 3} 0 0",
    ]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line["step"] for line in lines]
    measured = [line for line in lines if "devices/slowest" in line]
    assert len(measured) >= stopped // 5 and all(line["devices/slowest"] >= 1 for line in measured)
    assert steps == sorted(set(steps)) and steps[-1] == stopped + 3
    with Checkpoints(tmp_path / "checkpoints", write=False) as checkpoints:
        restored = checkpoints.restore(test_loop.toy()[1])
    whole, _ = test_loop.run(stopped + 3, loader=Loader())
    # Gloo adds up in another order than the collectives within a process do: the same but for rounding, which
    # the descent of a quadratic loss forgets.
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(restored), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
