"""Seconds from SIGTERM to the end of a run, of the clock and of the processor, while it saves every step.

    python -m benchmarks.preemption [--signals 5] [KEY=VALUE ...]

Trains configs/lm.py:tiny with the given keys, saves a checkpoint after every step, and sends SIGTERM at a
random instant once some are saved: the run ends its step, waits for the checkpoint that is being written,
saves the last one and exits. Each run continues from there.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = (
    "--config.train.steps=1000000",
    "--config.train.checkpoint_every=1",
    "--config.train.log_every=1",
    "--config.optimizer.schedule=constant",
)


def processor_seconds(process: int) -> float:
    """User and system time of a process that has not been waited for."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stop(folder: Path, keys: list[str], rng: random.Random) -> tuple[float, float]:
    """Starts the run, or continues with it, and ends it; (seconds of the clock, of the processor)."""
    command = [sys.executable, "launch.py", "--config=configs/lm.py:tiny", f"--workdir={folder}", *OPTIONS]
    command += [f"--config.{key}" for key in keys]
    before = len(lines(folder))
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(lines(folder)) < before + 4:
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with {process.returncode}")
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 2))
    used, began = processor_seconds(process.pid), time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 143:
        raise RuntimeError(f"the run ended with {status}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime - used


def lines(folder: Path) -> list[str]:
    """The lines of its metrics."""
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    """Prints the seconds of each signal, and the bytes of a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=5)
    parser.add_argument("keys", nargs="*", help="keys of the config")
    flags = parser.parse_args()
    rng, spent = random.Random(0), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        for _ in range(flags.signals):
            spent.append(stop(folder, flags.keys, rng))
            (last,) = (folder / "checkpoints").iterdir()
            if int(last.name) != json.loads(lines(folder)[-1])["step"]:
                raise RuntimeError("the last step is not the one that is saved")
        size = sum(path.stat().st_size for path in last.rglob("*") if path.is_file())
    print(f"a checkpoint has {size / 1e6:.1f} MB")
    for what, seconds in zip(("clock", "processor"), zip(*spent, strict=True), strict=True):
        print(f"seconds of the {what}: {', '.join(f'{second:.2f}' for second in seconds)}")


if __name__ == "__main__":
    main()
