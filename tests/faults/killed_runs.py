"""Runs that are killed at random instants until they are done.

    python -m tests.faults.killed_runs [--kills 50] [--configs lm translation]

A run is trained undisturbed. Then the same command is started in another folder, killed with SIGKILL after a
random time, and started again, until it has been killed so often and is done. Its last state, by the
checksums of the checkpoint, and its metrics must be those of the undisturbed run.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import runs

CONFIGS = ("lm", "translation", "bert")
OPTIONS = (
    "--config.train.steps=12",
    "--config.train.checkpoint_every=2",
    "--config.train.evaluate_every=4",
    "--config.train.log_every=1",
    "--config.optimizer.schedule=constant",
)


def start(config: str, folder: Path) -> subprocess.Popen:
    """Starts the run, or continues with it; its cache of tokens is in the folder too, so that a killed
    process may leave that half-built."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "launch.py", f"--config=configs/{config}.py:tiny", f"--workdir={folder}/run"]
    return subprocess.Popen(
        [*command, *OPTIONS],
        cwd=runs.ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(config: str, folder: Path) -> float:
    """Trains to the end; returns the seconds that it took."""
    began = time.monotonic()
    process = start(config, folder)
    _, error = process.communicate()
    if process.returncode:
        raise AssertionError(f"{config} ended with {process.returncode}: {error[-2000:]}")
    return time.monotonic() - began


def result(folder: Path) -> dict:
    """The last state and what was measured, without times and memory."""
    written = json.loads((folder / "run/checkpoints/12/_CHECKPOINT_METADATA").read_text())
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    measured = [
        {key: value for key, value in line.items() if key == "step" or "loss" in key or "accuracy" in key}
        for line in lines
    ]
    return {"checksums": written["custom_metadata"]["checksums"], "metrics": measured}


def kill(config: str, folder: Path, seconds: float, kills: int, rng: random.Random) -> list[str]:
    """Kills a run so often at random instants, and lets it end; what it had reached each time."""
    reached = []
    for _ in range(kills):
        process = start(config, folder)
        try:
            process.wait(rng.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        names = [path.name for path in (folder / "run" / "checkpoints").glob("*")]
        steps = max((int(name) for name in names if name.isdecimal()), default=0)
        writing = any("tmp" in name for name in names)
        reached.append(f"{steps}{'+' if writing else ''}")
    finish(config, folder)
    return reached


def main() -> None:
    """Prints a line for each config."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills of each config")
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=CONFIGS, help="which")
    parser.add_argument("--each", type=int, default=5, help="kills of one run")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    rng = random.Random(flags.seed)
    for config in flags.configs:
        with tempfile.TemporaryDirectory() as name:
            finish(config, Path(name) / "first")  # compiles
            seconds = finish(config, Path(name) / "whole")
            expected, same, reached = result(Path(name) / "whole"), 0, []
            count = -(-flags.kills // flags.each)
            for number in range(count):
                folder = Path(name) / str(number)
                reached += kill(config, folder, 1.5 * seconds, flags.each, rng)
                same += result(folder) == expected
        print(
            f"{config}: {len(reached)} kills of {count} runs; {same} ended as the undisturbed one;", end=" "
        )
        print("latest checkpoints, + where one was being written:", *reached, flush=True)


if __name__ == "__main__":
    main()
