"""Trains many runs that differ in some config keys, several at a time; the same command continues it.

python launch.py --mode=sweep --config=configs/lm.py --sweep optimizer.learning_rate=1e-3,3e-3 --jobs=2
python launch.py --mode=table --runs='runs/lm-sweep/*'

Each run has a folder of its own in --workdir, named after the values of its keys, with its output in
output.txt. A run that fails does not end the others. Without --sweep the runs are those of the function
`sweep()` of the config file (see commands/sweeps/algebra.py).

python launch.py --mode=sweep --config=configs/lm.py --search model.num_layers=2..6 --trials=20

draws the values of the keys by Optuna instead (pip install optuna), each after those that were tried before;
without --search they are those of `search()` of the config file (see commands/sweeps/spaces.py).
"""

import argparse
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import NO_CONFIG, place
from commands.sweeps.algebra import Setting, names, product, read_sweep
from transformer import ROOT
from transformer.errors import UserError
from workdir.included import INCLUDED

if TYPE_CHECKING:
    from commands.sweeps.jobs import Job
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing=NO_CONFIG, suffix="sweep")
    add = parser.add_argument
    add("--config", type=place, help="a config file, configs/lm.py, or a preset of it, configs/lm.py:tiny")
    form = "KEY=VALUE,VALUE, or KEY,KEY=VALUE:VALUE,VALUE:VALUE for keys that change together"
    add("--sweep", action="append", default=[], help=f"{form}; several are multiplied")
    form = "KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE to draw trials from"
    add("--search", action="append", default=[], help=f"{form}; several are searched together")
    add("--trials", type=int, help="the number of trials of a search, those of earlier starts included")
    add("--metric", help="what a search minimises, or -METRIC for what it maximises (eval/loss)")
    add("--jobs", type=int, default=1, help="runs at a time (1), each on one of the GPUs if there are any")
    add("--halving", metavar="METRIC", help="stop hopeless runs by this metric (-METRIC: more is better)")
    add("--halving_start", type=int, default=0, help="the step of the first comparison (an eighth of all)")
    add(
        "--halving_factor",
        type=int,
        default=3,
        help="one run in this many continues; steps grow by it too (3)",
    )
    add(
        "--slurm",
        metavar="OPTIONS",
        help="submit an array of jobs with these options of sbatch: '--gpus=1 ...'",
    )
    add("--dry_run", action="store_true", help="only print the runs, or the command that --slurm would run")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Trains all runs. Returns 0, or 1 if some failed."""
    from commands.sweeps.halving import Halving
    from commands.sweeps.jobs import work
    from workdir.provenance import shell

    if flags.search or flags.trials is not None or flags.metric:
        from commands.sweeps.trials import search

        return search(flags, [*overrides])
    jobs = read_jobs(flags, overrides)
    if flags.slurm is not None:
        return submit(flags, overrides, len(jobs))
    if flags.dry_run:
        for job in jobs:
            print(shell(*job.arguments))
        return 0
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        return one_of_an_array(jobs)
    halving = None
    if flags.halving:
        halving = Halving.of(flags.halving, flags.halving_start, flags.halving_factor, jobs)
    ended = work(jobs, flags.jobs, halving)
    if ended <= 1:
        print(shell("--mode=table", f"--runs={Path(flags.workdir) / '*'}"))
    return ended


def read_jobs(flags: argparse.Namespace, overrides: "Overrides") -> list["Job"]:
    """The runs of the sweep, each with a config that was checked.

    Raises:
      UserError: no runs, or bad keys or values in one of them; two equal runs; bad flags.
    """
    from commands.sweeps.settings import check_flags, make_job, refuse_twice

    check_flags(flags)
    changes, settings = [*overrides], read_settings(flags)
    refuse_twice(changes, settings[0], "sweep")
    jobs = []
    for name, setting in zip(names(settings), settings, strict=True):
        try:
            jobs.append(make_job(flags, changes, name, setting))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return jobs


def read_settings(flags: argparse.Namespace) -> list[Setting]:
    """The settings of --sweep, or else of the config file's `sweep()`."""
    from workdir.opening import call_in

    if flags.sweep:
        return product(*map(read_sweep, flags.sweep))
    try:
        result = call_in(flags.config.partition(":")[0], "sweep")
    except UserError as error:
        raise UserError(f"--sweep: none is given, and {error}") from None
    settings = result if isinstance(result, list) else []
    if not settings or not all(isinstance(setting, dict) and setting for setting in settings):
        raise UserError(f"{flags.config}: sweep() should return a list of {{key: value}}, at least one")
    return settings


def submit(flags: argparse.Namespace, overrides: "Overrides", runs: int) -> int:
    """Submits an array of Slurm jobs, one for each run."""
    from commands.sweeps.settings import words

    sweeps = [f"--sweep={text}" for text in flags.sweep]
    keys = [*INCLUDED, *(f"--config.{key}={value}" for key, value in overrides)]
    array = [] if "--array" in flags.slurm else [f"--array=0-{runs - 1}"]
    again = ["--mode=sweep", f"--workdir={flags.workdir}", f"--config={flags.config}", *sweeps, *keys]
    command = ["sbatch", *array, *words("--slurm", flags.slurm), str(ROOT / "cluster" / "slurm.sh"), *again]
    print(shlex.join(command), flush=True)
    if flags.dry_run:
        return 0
    try:
        return subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        raise UserError("--slurm: there is no sbatch here; --dry_run prints the command") from None


def one_of_an_array(jobs: list["Job"]) -> int:
    """Trains the run of this job of a Slurm array, in this process or these processes."""
    from workdir.session import train

    task = os.environ["SLURM_ARRAY_TASK_ID"]
    if not task.isdecimal() or int(task) >= len(jobs):
        raise UserError(f"SLURM_ARRAY_TASK_ID: {task}; expected 0 to {len(jobs) - 1}, a run of the sweep")
    job = jobs[int(task)]
    if job.over:
        print(f"{job.name}: {job.outcome} before")
        return 0
    reason = train(str(job.folder), [], job.values)
    if reason == "finished":
        job.record("finished")
    return 0 if reason == "finished" else 128 + signal.Signals[reason]
