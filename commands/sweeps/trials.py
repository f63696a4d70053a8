"""Searches of --mode=sweep (see commands/sweep.py): Optuna draws the trials, which are runs like any other.

It draws them by the tree-structured Parzen estimator (Bergstra et al. 2011, "Algorithms for hyper-parameter
optimization", section 4) in its multivariate form, and keeps them as a study in `search.db`. Each trial is a
function of the config's seed, its number and those that had ended, not of how often the search was stopped.
"""

import argparse
import functools
import glob
import importlib.util
import json
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.sweeps.algebra import Setting, names
from commands.sweeps.halving import Halving
from commands.sweeps.jobs import Job, Work
from commands.sweeps.settings import check_flags, make_job, refuse_twice
from commands.sweeps.spaces import Choices, Dimension, check_space, read_space
from transformer.config import flatten, with_defaults
from transformer.config_help import describe_keys
from transformer.data.cache.disk_cache import digest
from transformer.errors import UserError, first_line
from transformer.safe_files import lock_file, no_link
from transformer.schedulers import are_several
from workdir.outputs import make_folder
from workdir.provenance import shell

if TYPE_CHECKING:
    import optuna

METRIC = "eval/loss"
STUDY = "search"


def search(flags: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Trains --trials runs, and prints the best. Returns 0, 1 if all failed, or 128 + the number of a signal.

    Raises:
      UserError: bad flags, keys or values; a folder with another search, or that cannot be written; a
        metric that no run measures.
    """
    check_flags(flags)
    refuse(flags)

    def make(setting: Setting) -> Job:
        return make_job(flags, overrides, names([setting])[0], setting)

    kind, values = of_all_trials(flags.config, overrides)
    types = {key.name: key.type for key in describe_keys(kind)}
    space = read_space(flags.search or read_search(flags), types)
    for dimension in space:
        refuse_twice(overrides, dimension.extremes[0], "search")
    jobs = check_space(space, make)
    metric, folder = flags.metric or METRIC, Path(flags.workdir)
    if metric.removeprefix("-").startswith("eval/") and not values["train.evaluate_every"]:
        raise UserError(f"--metric: {metric} is not measured with train.evaluate_every=0; set it")
    halving = None
    if flags.halving:
        halving = Halving.of(flags.halving, flags.halving_start, flags.halving_factor, jobs)
    make_folder(folder)
    with open(folder / "search.lock", "a", opener=no_link) as file:
        if not lock_file(file):
            raise UserError(f"--workdir: another command searches in {folder}; choose another folder")
        request = {"--search": [searched.text for searched in space], "--metric": metric} | values
        study = open_study(folder / "search.db", request, metric)
        trials = Trials(study, space, make, metric, values["seed"], flags.trials, flags.jobs, halving)
        ended = trials.run()
    return ended if ended > 1 else report(flags, trials)


def of_all_trials(config: str, overrides: list[tuple[str, str]]) -> tuple[Any, dict[str, Any]]:
    """The config class, and the values of its keys. They are not checked: only with those of a trial may
    they fit together."""
    from experiments import find_experiment
    from workdir.opening import read_config

    values = read_config(config, overrides)
    kind = find_experiment(values.get("experiment")).Config
    return kind, flatten(json.loads(json.dumps(with_defaults(kind, values))))  # as a study gives them back


def refuse(flags: argparse.Namespace) -> None:
    """Raises `UserError` for flags that do not go with a search, and without Optuna."""
    why = ""
    if flags.sweep:
        why = "--sweep: it comes with --search; give one of them"
    elif flags.trials is None or flags.trials < 1:
        how_many = (
            "how many? --trials=20, say" if flags.trials is None else f"{flags.trials}; expected 1 or more"
        )
        why = f"--trials: {how_many}"
    elif flags.slurm is not None or "SLURM_ARRAY_TASK_ID" in os.environ:
        why = (
            "--slurm: the jobs of an array start together, but a search draws each trial after those before "
            "it; give --sweep, or start the search in one job, with --jobs runs at a time"
        )
    elif flags.coordinator or are_several(os.environ):
        why = "--search: one process draws the trials, but this is one of several; start it once"
    elif flags.dry_run:
        why = "--dry_run: which runs a search has is known only as it goes; leave it out"
    elif importlib.util.find_spec("optuna") is None:
        extra = "pip install optuna, or the extra 'transformer-research[optuna]'"
        why = f"--search: it needs a package that is not installed: {extra}"
    if why:
        raise UserError(why)


def read_search(flags: argparse.Namespace) -> Mapping[str, Any]:
    """The value of `search()` of the config file."""
    from workdir.opening import call_in

    try:
        result = call_in(flags.config.partition(":")[0], "search")
    except UserError as error:
        raise UserError(f"--search: none is given, and {error}") from None
    if not isinstance(result, dict) or not result:
        raise UserError(f"{flags.config}: search() should return {{key: 'LOW..HIGH' or [value, ...]}}")
    return result


def open_study(path: Path, request: dict[str, Any], metric: str) -> "optuna.Study":
    """The study in a file, which is made if it is not there.

    Raises:
      UserError: it is the study of another search, or no study.
    """
    import optuna
    import sqlalchemy

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string()
    direction: Any = "maximize" if metric.startswith("-") else "minimize"
    try:
        study = optuna.create_study(storage=url, study_name=STUDY, direction=direction, load_if_exists=True)
        before = study.user_attrs.get("asked", request)
    except Exception as error:  # of Optuna, SQLAlchemy or SQLite
        raise UserError(f"{path}: not readable as a study of Optuna ({first_line(error)})") from None
    for key, value in before.items():
        if value != (now := request.get(key)):
            hint = f", or remove {path}: what has finished is not trained again"
            label, hint = (key, hint) if key.startswith("--") else (f"config.{key}", "")
            raise UserError(
                f"--workdir: {path.parent} has another search, of {label} {value!r}, not {now!r}; choose "
                f"another folder{hint}"
            )
    study.set_user_attr("asked", before)
    return study


class Trials(Work):
    """The trials of a study as jobs: a new one is drawn when one has ended, and all that were drawn are kept.

    A trial whose values have been trained before, by a trial of the same values or for a study that was
    removed, takes its metric from there.
    """

    elsewhere = "before"

    def __init__(
        self,
        study: "optuna.Study",
        space: Sequence[Dimension],
        make: Callable[[Setting], Job],
        metric: str,
        seed: int,
        trials: int,
        at_once: int,
        halving: Halving | None = None,
    ) -> None:
        super().__init__([], at_once, halving)
        self.study, self.space, self.make, self.seed = study, space, make, seed
        self.metric = metric.removeprefix("-")
        self.number_of: dict[Job, int] = {}
        all_trials = study.get_trials(deepcopy=False)
        for trial in all_trials:
            if not self.is_whole(trial) and not trial.state.is_finished():
                study.tell(trial.number, state=state("FAIL"))
        self.earlier = [*filter(self.is_whole, all_trials)]
        self.drawn = len(self.earlier)
        self.total = max(trials, self.drawn)
        self.ended = sum(trial.state.is_finished() for trial in self.earlier)

    def is_whole(self, trial: Any) -> bool:
        """Whether a trial has all its keys: one that was drawn when the command was killed may not."""
        return trial.params.keys() == {dimension.name for dimension in self.space}

    def train(self) -> int:
        """Continues the trials that have not ended, and draws the others. Returns what `Work.run` does."""
        for trial in self.earlier:
            if not trial.state.is_finished():
                self.add(trial.number, trial.params)
            elif self.halving and trial.state.name != "FAIL":
                self.halving.is_hopeless(self.make(self.setting(trial.params)))
        self.draw()
        return super().train()

    def draw(self) -> None:
        """Draws trials until enough jobs wait or run."""
        from optuna.samplers import TPESampler

        kinds = {dimension.name: distribution(dimension) for dimension in self.space}
        while (
            self.drawn < self.total
            and len(self.queue) + len(self.running) < self.at_once
            and not self.signals
        ):
            seed = int(digest("search", self.seed, self.drawn)[:8], 16)
            # The constant liar keeps trials that run at the same time apart.
            self.study.sampler = TPESampler(seed=seed, constant_liar=True)
            trial = self.study.ask(kinds)
            self.drawn += 1
            self.add(trial.number, trial.params)

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """The keys of a trial with their values."""
        return functools.reduce(
            operator.or_, (dimension.setting(params[dimension.name]) for dimension in self.space)
        )

    def add(self, number: int, params: Mapping[str, Any]) -> None:
        """The job of a trial waits; a trial whose values do not fit together has failed."""
        setting = self.setting(params)
        try:
            job = self.make(setting)
        except UserError as error:
            self.study.tell(number, state=state("FAIL"))
            self.count(f"{names([setting])[0]}: failed: {error}")
        else:
            self.number_of[job] = number
            self.queue.append(job)

    def end(self, job: Job, how: str) -> None:
        """Tells Optuna how a trial has ended, and draws the next."""
        number, outcome = self.number_of.pop(job), job.outcome
        if outcome == "finished":
            value = self.measure(job)
            how = f"{how}, {self.metric} {value:.5g}"
            if math.isfinite(value):
                self.study.tell(number, value)
            else:
                outcome, how = "failed", f"{how}: a failed trial"
        if outcome != "finished":
            self.study.tell(number, state=state("PRUNED" if outcome == "stopped" else "FAIL"))
        super().end(job, how)
        self.draw()

    def measure(self, job: Job) -> float:
        """The last value of the metric.

        Raises:
          UserError: the run has not measured it.
        """
        from commands.table import check_metric, read_runs

        values = job.measured(self.metric)
        if not values:
            check_metric(self.metric, read_runs([glob.escape(str(job.folder))], "--metric")[0])
        return values[-1][1] if values else math.nan


def state(name: str) -> Any:
    """A state of Optuna's trials."""
    from optuna.trial import TrialState

    return TrialState[name]


def distribution(dimension: Dimension) -> Any:
    """Optuna's distribution of a dimension."""
    from optuna import distributions

    if isinstance(dimension, Choices):
        return distributions.CategoricalDistribution([*dimension.settings])
    if dimension.whole:
        return distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def report(flags: argparse.Namespace, trials: Trials) -> int:
    """Prints the best trial, the command that repeats it, and that of the table. Returns 0, 1 without any."""
    whole = filter(trials.is_whole, trials.study.get_trials(deepcopy=False))
    ended = [trial.state.name for trial in whole]
    counts = {"failed": ended.count("FAIL"), "stopped": ended.count("PRUNED")}
    listed = ", ".join([f"{trials.total} trials", *(f"{n} {how}" for how, n in counts.items() if n)])
    if "COMPLETE" not in ended:
        print(f"{listed}; none has finished")
        return 1
    best = trials.study.best_trial
    job = trials.make(trials.setting(best.params))
    print(f"best of {listed}: {job.name}, {trials.metric} {best.value:.5g}")
    print(shell(f"--workdir={flags.workdir}-best", *job.arguments[1:]))
    runs, metric = f"--runs={Path(flags.workdir) / '*'}", f"--metric={flags.metric or METRIC}"
    print(shell("--mode=table", runs, metric, f"--pictures={flags.workdir}"))
    return 0
