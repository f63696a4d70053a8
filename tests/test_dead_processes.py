"""Whether there are other processes, and that none waits for one that is dead."""

import socket
import subprocess
import sys
import textwrap
import time

import pytest

from tests import runs
from transformer import schedulers

PROGRAM = """
    import os, signal, sys
    import jax
    from transformer import distributed
    number, port = int(sys.argv[1]), sys.argv[2]
    distributed.connect(f"localhost:{port}", 2, number, heartbeat_seconds=5)
    from jax.experimental import multihost_utils
    multihost_utils.sync_global_devices("both are there")
    print("met", jax.process_count(), flush=True)
    if number == 1:
        ENDING
    distributed.wait_for_all()
    print("parted")
"""


def together(ending: str) -> tuple[list[subprocess.Popen], list[tuple[str, str]], float]:
    """Two processes, the second of which ends so; what they say, and the seconds until both have ended."""
    program = textwrap.dedent(PROGRAM).replace("ENDING", ending)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(number), str(port)],
            cwd=runs.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for port in [runs.free_port()]
        for number in range(2)
    ]
    try:
        started[1].stdout.readline()
        begin = time.time()
        said = [process.communicate(timeout=100) for process in started]
        return started, said, time.time() - begin
    finally:
        for process in started:
            process.kill()


@pytest.mark.thorough
def test_processes_wait_for_the_slowest_at_the_end():
    started, said, _ = together("import time; time.sleep(8)")
    assert [process.returncode for process in started] == [0, 0], said
    assert [out.splitlines()[-1] for out, _ in said] == ["parted", "parted"]
    host = socket.gethostname()
    assert f"2 processes: 0 on {host} 1 on {host}\n" in said[0][1] and "2 processes" not in said[1][1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "ending",
    [
        *(f"os.kill(os.getpid(), signal.{name})" for name in ("SIGKILL", "SIGTERM")),
        "raise SystemError('broken')",
    ],
)
def test_all_end_when_one_has_died(ending):
    """In less than a minute, with a number that is not that of success, and without parting."""
    started, said, seconds = together(ending)
    assert seconds < 60 and all(process.returncode for process in started)
    assert not any("parted" in out for out, _ in said)
    assert "task:1" in said[0][1] or "task/1" in said[0][1] or "Barrier" in said[0][1], said[0][1]


@pytest.mark.thorough
@pytest.mark.parametrize("number", (0, 1))
def test_a_process_that_waits_in_vain_for_another_says_so(number):
    program = f"""
        from transformer import distributed
        distributed.MEET_SECONDS = 1
        distributed.connect("localhost:{runs.free_port()}", 2, {number})
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=runs.ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 2 and ended.stderr.splitlines()[-1] == (
        "error: --coordinator: the processes did not meet: after 1 seconds not all have come; start each, "
        "with the same address"
    )


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "10.0.0.1", "MEGASCALE_NUM_SLICES": "2"}, True),
        ({"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
    ],
)
def test_what_says_that_there_are_others(environment, several):
    assert schedulers.are_several(environment) == several


def test_the_last_line_is_not_written_after_a_progress_bar():
    program = """
        from tqdm import tqdm
        from commands.support import ending
        from transformer import distributed
        distributed.announce_end = lambda *said: None
        bar = tqdm(total=3, mininterval=0)
        bar.update()
        ending.leave("error: said", "why", code=5)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=runs.ROOT, capture_output=True, text=True
    )
    lines = ended.stderr.splitlines()
    assert (ended.returncode, lines[-1]) == (5, "error: said") and "1/3" in lines[-3], lines


def test_a_program_ends_once_a_look_at_the_others_is_over():
    """Python would end the thread in the middle of it, and C++ then the program, with another exit code."""
    program = """
        import sys, time
        from transformer import distributed
        distributed.LISTEN_SECONDS = 0
        distributed.PLACES.append(("node0", "127.0.0.1", 0))
        distributed.announced_end = lambda: print("looks", flush=True) or time.sleep(1) or print("has looked")
        distributed.watch_for_ends(print)
        time.sleep(0.2)
        sys.exit(2)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=runs.ROOT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "looks\nhas looked\n"), ended.stderr
