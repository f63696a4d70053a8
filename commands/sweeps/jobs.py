"""Runs of a sweep as processes: started, watched, stopped, and remembered when they have ended."""

import contextlib
import dataclasses
import glob
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from transformer import ROOT
from transformer.data.cache.disk_cache import digest
from transformer.json_text import parse_json
from transformer.run_folder import RunFolder
from transformer.safe_files import no_link
from workdir.folder import write_json
from workdir.included import INCLUDED
from workdir.lock import free
from workdir.outputs import make_folder

if TYPE_CHECKING:
    from commands.sweeps.halving import Halving


SECONDS = 0.5
"""The time between two looks at running jobs."""


@dataclasses.dataclass(eq=False)
class Job:
    """A run of a sweep: the arguments that train it, and the values of its config.

    `outcome.json` in its folder says that it "finished", was "stopped" as hopeless, gave up since it had
    "diverged" (see `commands.sweeps.measuring`), or "failed", with this config.
    """

    name: str
    folder: Path
    arguments: list[str]
    values: dict[str, Any]
    process: subprocess.Popen | None = None
    slot: int = 0
    bar: Any = None
    stop_reason: str = ""  # why it was asked to stop

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self.values["train"]["steps"]

    @property
    def outcome(self) -> str:
        """The earlier end of the run with this config, or ""."""
        try:
            content = parse_json((self.folder / "outcome.json").read_bytes())
        except (OSError, ValueError):
            return ""
        known = isinstance(content, dict) and content.get("config") == digest(self.values)
        return str(content.get("outcome")) if known else ""

    @property
    def over(self) -> bool:
        """Whether it needs no more training."""
        return self.outcome in ("finished", "stopped", "diverged")

    @property
    def free(self) -> bool:
        """Whether no other command trains it."""
        return free(RunFolder(self.folder).path / "lock")

    def record(self, outcome: str, **more: Any) -> None:
        """Writes `outcome.json`."""
        write_json(self.folder / "outcome.json", {"outcome": outcome, "config": digest(self.values)} | more)

    @property
    def output(self) -> Path:
        """The output of the process."""
        return self.folder / "output.txt"

    def start(self, slot: int, gpus: Sequence[str]) -> None:
        """Starts training in a process of its own, on one of the GPUs if there are any."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {})
        self.slot = slot
        with open(self.output, "a", opener=no_link) as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "launch.py"), *INCLUDED, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which tells its runs
            )

    def stop(self, why: str) -> None:
        """Asks the process to save a checkpoint and to end."""
        self.stop_reason = self.stop_reason or why
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def last_line(self) -> str:
        """The last line that the process has printed."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.split("\r")[-1].strip() for line in reversed(lines) if line.strip()), "")

    @property
    def step(self) -> int:
        """The last step in `metrics.jsonl`, or 0."""
        path, ends = RunFolder(self.folder).metrics, (2**12, 2**18, 0)  # lines with many norms are long
        return max(next(filter(None, ([line["step"] for line in _lines(path, end)] for end in ends)), [0]))

    def measured(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, NaN where it was not finite."""
        lines = [line for line in _lines(RunFolder(self.folder).metrics) if metric in line]
        return [(line["step"], math.nan if line[metric] is None else line[metric]) for line in lines]


def _lines(path: Path, end: int = 0) -> Iterator[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, or of its last `end` bytes, where the first and last may be cut."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - end) if end else 0)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            values = parse_json(line)
            if isinstance(values, dict) and "step" in values:
                yield values


def gpus() -> list[str]:
    """The GPUs that runs may have, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [number for number in visible.split(",") if number]
    return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def work(jobs: Sequence[Job], at_once: int, halving: "Halving | None" = None) -> int:
    """Trains all jobs that are not over (see `Work`)."""
    return Work(jobs, at_once, halving).run()


class Work:
    """Jobs that are trained, `at_once` at a time, and without those that `halving` finds hopeless.

    Raises:
      UserError: the folder that they have in common cannot be written.
    """

    elsewhere = "trained by another command"  # the outcome of a job that was over before it could be started

    def __init__(self, jobs: Sequence[Job], at_once: int, halving: "Halving | None" = None) -> None:
        for folder in {job.folder.parent for job in jobs}:
            make_folder(folder)
        self.at_once, self.halving = at_once, halving
        self.queue = [job for job in jobs if not job.over]
        if halving:
            for job in jobs:
                halving.is_hopeless(job)  # what it has measured before
        self.total, self.ended = len(jobs), len(jobs) - len(self.queue)
        self.running: list[Job] = []
        self.failed = 0
        self.gpus = gpus()
        self.signals: list[int] = []
        self.silent = not sys.stderr.isatty()

    def run(self) -> int:
        """Trains. Returns 0, 1 if some failed, or 128 + the number of the signal that ended the command, once
        its runs have saved a checkpoint."""
        handlers = {
            number: signal.signal(number, lambda number, _: self.signals.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        out: TextIO = sys.stderr
        self.bar = tqdm(
            total=self.total, initial=self.ended, desc="runs", unit="run", file=out, disable=self.silent
        )
        try:
            if self.ended:
                self.say(f"{self.ended} of {self.total} runs have ended before")
            return self.train()
        finally:
            self.bar.close()
            for job in self.running:  # none, unless there was an error
                job.stop("interrupted")
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def train(self) -> int:
        """The loop of `run`."""
        while self.running or (self.queue and not self.signals):
            self.fill()
            time.sleep(SECONDS)
            for job in [*self.running]:
                self.look(job)
            if self.signals:
                for job in self.running:
                    job.stop("interrupted")
        if self.signals:
            left = self.total - self.ended
            self.say(f"interrupted; {left} of {self.total} runs are left: the same command continues")
            return 128 + self.signals[0]
        return 1 if self.failed else 0

    def fill(self) -> None:
        """Starts jobs while there is room; those that another command trains wait at the end."""
        for job in [*self.queue]:
            if len(self.running) >= self.at_once or self.signals:
                return
            if job.over:  # by another command
                self.end(job, f"{job.outcome} {self.elsewhere}")
            elif job.free and all(peer.folder != job.folder for peer in self.running):
                used = {peer.slot for peer in self.running}
                job.start(min({*range(self.at_once)} - used), self.gpus)
                job.bar = tqdm(
                    total=job.steps, desc=job.name, leave=False, position=job.slot + 1, disable=self.silent
                )
                self.running.append(job)
                self.queue.remove(job)

    def look(self, job: Job) -> None:
        """Shows how far a job is, and what has become of it if it has ended."""
        assert job.process is not None
        code = job.process.poll()
        step = job.step
        job.bar.update(step - job.bar.n)
        if code is None:
            if self.halving and not job.stop_reason and self.halving.is_hopeless(job):
                job.stop("hopeless")
            return
        self.running.remove(job)
        job.bar.close()
        if code == 0:
            job.record("finished")
            self.end(job, "finished")
        elif job.stop_reason == "hopeless":
            job.record("stopped", step=step)
            self.end(job, f"stopped at step {step} of {job.steps}")
        elif job.stop_reason or code == 128 + signal.SIGTERM or not job.free:  # of a command that was killed
            self.queue.append(job)
        else:
            self.fail(job, code)

    def fail(self, job: Job, code: int) -> None:
        """Counts a job that has failed."""
        self.failed += 1
        job.record("failed", code=code)
        self.end(job, f"failed with exit code {code}: {job.last_line()} ({job.output})")

    def end(self, job: Job, how: str) -> None:
        """Says how a job has ended."""
        if job in self.queue:
            self.queue.remove(job)
        self.count(f"{job.name}: {how}")
        if self.halving:
            self.halving.check(job)

    def count(self, line: str) -> None:
        """Says how one of all has ended."""
        self.ended += 1
        self.bar.update()
        self.say(line)

    def say(self, line: str) -> None:
        """Prints a line beside the bars."""
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()
