"""Is B better than A? Trains pairs of runs with the same seeds until that is shown, or `--pairs` are trained.

python launch.py --mode=compare --config=configs/lm.py --b="model.norm=layer"
python launch.py --mode=compare --a="configs/x.py" --b="configs/y.py optimizer.learning_rate=1e-3"
python launch.py --mode=compare --a='runs/x/seed=*' --b='runs/y/seed=*'

--a and --b are a config file (--config by default), keys to set, or both; or folders of runs that are there.
The test may be stopped at any time: see transformer/evaluation/statistics/sequential.py.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import place
from commands.sweeps.rows import rank
from transformer.errors import UserError

if TYPE_CHECKING:
    from commands.sweeps.jobs import Job
    from workdir.opening import Overrides

BASES = ("steps", "tokens", "flops", "seconds")
SPEED = "train/tokens_per_second"

PROBE = 40
"""Steps of the runs that measure how long a step takes."""

TUNED = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the learning rate that --tune tries."""

TUNING_SEED = 1_000_000
"""The seed of these runs, which is none of the pairs'."""


@dataclasses.dataclass
class Arm:
    """A or B: a config file and its keys."""

    name: str
    config: str
    keys: list[tuple[str, str]]

    def values(self, **keys: Any) -> dict[str, Any]:
        """The checked values of its config, with further keys, "train__steps"."""
        from commands.sweeps.settings import check_config_to_train
        from transformer.config import to_values

        try:
            return to_values(check_config_to_train(self.config, [*self.keys, *_overrides(keys)]))
        except UserError as error:
            raise UserError(f"--{self.name}: {error}") from None

    def job(self, workdir: str, **keys: Any) -> "Job":
        """The run with further keys."""
        from commands.sweeps.algebra import names
        from commands.sweeps.jobs import Job

        more = _overrides(keys)
        folder = Path(workdir) / ",".join([self.name, *names([dict(more)])])
        arguments = [f"--workdir={folder}", f"--config={self.config}"]
        arguments += [f"--config.{key}={value}" for key, value in [*self.keys, *more]]
        return Job(folder.name, folder, arguments, self.values(**keys))


def _overrides(keys: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key.replace("__", "."), repr(value)) for key, value in keys.items()]


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing="", suffix="compare", alone=True)
    add = parser.add_argument
    add("--config", type=place, default="", help="the config file of A and B, unless they name their own")
    add(
        "--a", type=place, default="", help="a config file, KEY=VALUE KEY=VALUE, or both; or runs, 'runs/x/*'"
    )
    add("--b", type=place, default="", help="the same of B")
    add("--metric", default="eval/loss", help="what is compared; -METRIC if more is better (eval/loss)")
    add("--pairs", type=int, default=20, help="the most pairs (20), with seeds 0, 1, 2, ...")
    add("--error", type=float, default=0.05, help="the probability of a wrong answer if A = B (0.05)")
    add(
        "--smallest",
        type=float,
        default=0.0,
        help="the smallest difference that matters: stop if there is none",
    )
    add(
        "--basis",
        choices=BASES,
        default="steps",
        help="what A and B have as much of; B's steps follow (steps)",
    )
    add("--tune", action="store_true", help="first try five learning rates for each, with another seed")
    add("--jobs", type=int, default=1, help="runs at a time (1)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the answer, and writes comparison.json to --workdir. Returns 0, or 1 if a run failed."""
    from commands.sweeps.comparison import Comparison, pairs_there
    from commands.sweeps.measuring import last, train
    from transformer.safe_files import replace

    check(flags)
    if folders := [folder for folder in (flags.a, flags.b) if _is_pattern(folder)]:
        if len(folders) == 1 or [*overrides]:
            raise UserError("--a and --b: both are folders, or none is; and folders take no keys")
        there, left_out = pairs_there(flags.a, flags.b, flags.metric)
        print(Comparison(flags, there).answer(), *left_out, sep="\n")
        return 0
    arms = read_arms(flags, [*overrides])
    if flags.tune:
        for arm in arms:
            if not tune(flags, arm):
                return 1
    match(flags, *arms)
    pairs: list[tuple[float, float]] = []
    comparison = Comparison(flags, pairs)
    while len(pairs) < flags.pairs and not comparison.is_decided():
        seeds = range(len(pairs), min(flags.pairs, len(pairs) + max(1, flags.jobs // 2)))
        jobs = [arm.job(flags.workdir, seed=seed) for seed in seeds for arm in arms]
        if code := train(jobs, flags.jobs, flags.metric):
            return code
        values = [last(job, flags.metric) for job in jobs]
        pairs.extend(zip(values[::2], values[1::2], strict=True))
        print(f"{len(pairs)} pairs, {comparison.estimates()}", flush=True)
    print(text := comparison.answer())
    record = {"metric": flags.metric, "differences": comparison.differences, "error": flags.error}
    record |= {"answer": text} | comparison.diverged()
    replace(Path(flags.workdir) / "comparison.json", json.dumps(record) + "\n")
    return 0


def check(flags: argparse.Namespace) -> None:
    """Raises `UserError` for a flag that cannot be."""
    if not flags.b and not flags.a:
        raise UserError('--b: what is it? --b="model.norm=layer", say (--mode=compare)')
    for name, value, good in (
        ("pairs", flags.pairs, flags.pairs >= 1),
        ("jobs", flags.jobs, flags.jobs >= 1),
        ("error", flags.error, 0 < flags.error < 1),
        ("smallest", flags.smallest, 0 <= flags.smallest < math.inf),
    ):
        if not good:
            bounds = {"error": "above 0, below 1", "smallest": "0 or more"}.get(name, "1 or more")
            raise UserError(f"--{name}: {value}; expected {bounds}")


def read_arms(flags: argparse.Namespace, overrides: "Overrides") -> tuple[Arm, Arm]:
    """A and B by the flags; keys for both come first.

    Raises:
      UserError: no config, a bad key, or equal ones.
    """
    from commands.sweeps.settings import words as words_of

    arms = []
    for name, text in (("a", flags.a), ("b", flags.b)):
        words = words_of(f"--{name}", text)
        config = words.pop(0) if words and "=" not in words[0] else flags.config
        if not config:
            raise UserError(f"--config: which one? configs/lm.py, say; --{name} names none")
        if bad := [word for word in words if "=" not in word.strip("=")]:
            raise UserError(f"--{name}: {bad[0]!r}; expected KEY=VALUE after the config file")
        pairs = [word.removeprefix("--config.").partition("=") for word in words]
        arms.append(Arm(name, config, [*overrides, *((key, value) for key, _, value in pairs)]))
    a, b = arms
    if a.values() == b.values():
        raise UserError("--b: it is the same as --a")
    if seeded := [arm.name for arm in arms if dict(arm.keys).get("seed")]:
        raise UserError(f"--{seeded[0]}: the seeds are those of the pairs, 0 to {flags.pairs - 1}")
    return a, b


def match(flags: argparse.Namespace, a: Arm, b: Arm) -> None:
    """Gives B the steps with which it has as much of --basis as A, and prints both."""
    steps = [arm.values()["train"]["steps"] for arm in (a, b)]
    if flags.basis != "steps":
        flops = [of_a_step(flags, arm) for arm in (a, b)]
        steps[1] = max(1, round(steps[0] * flops[0] / flops[1]))
        b.keys.append(("train.steps", str(steps[1])))
        b.values()
    print(f"equal {flags.basis}: {steps[0]:,} steps of a, {steps[1]:,} of b", flush=True)


def of_a_step(flags: argparse.Namespace, arm: Arm) -> float:
    """The tokens, FLOPs or seconds of one step."""
    from commands.sweeps.measuring import finite, last, train
    from transformer.training.logging.throughput import run_flops_per_token
    from workdir.opening import open_without_data, read_to_train

    run = open_without_data(read_to_train(arm.config, arm.keys), arm.keys)
    if run.config.train.until:
        raise UserError(f"--basis: {flags.basis}, but the steps of {arm.name} differ by config.train.until")
    tokens = run.config.train.batch_size * run.experiment.tokens_per_example
    if flags.basis == "tokens":
        return tokens
    if flags.basis == "flops":
        return tokens * run_flops_per_token(run)
    steps = min(PROBE, run.config.train.steps)
    probe = arm.job(flags.workdir, train__steps=steps, train__log_every=max(1, steps // 4))
    if train([probe], 1, SPEED):
        raise UserError(f"--{arm.name}: the run that measures its speed failed ({probe.output})")
    return tokens / finite(last(probe, SPEED), SPEED, probe.folder)


def tune(flags: argparse.Namespace, arm: Arm) -> bool:
    """Gives an arm the best of five learning rates around its own; False if a run failed.

    Raises:
      UserError: with each of them training diverges.
    """
    from commands.sweeps.measuring import finite, last, train

    rate = arm.values()["optimizer"]["learning_rate"]
    rates = [float(f"{rate * factor:.6g}") for factor in TUNED]
    jobs = [arm.job(flags.workdir, optimizer__learning_rate=tried, seed=TUNING_SEED) for tried in rates]
    if train(jobs, flags.jobs, flags.metric):
        return False
    sign = -1 if flags.metric.startswith("-") else 1
    measured = [last(job, flags.metric) for job in jobs]
    best = min(range(len(rates)), key=lambda i: rank(sign * measured[i]))
    finite(measured[best], flags.metric, jobs[best].folder)
    arm.keys.append(("optimizer.learning_rate", repr(rates[best])))
    edge = "; at the end of the grid, a wider one may be better" if best in (0, len(rates) - 1) else ""
    lost = [f"{rate:g}" for rate, value in zip(rates, measured, strict=True) if math.isnan(value)]
    edge += f"; diverged at {', '.join(lost)}" if lost else ""
    print(f"{arm.name}: optimizer.learning_rate={rates[best]:g} of {rates[0]:g} to {rates[-1]:g}{edge}")
    return True


def _is_pattern(text: str) -> bool:
    """Whether it names folders, not a config file and keys."""
    if "=" in text.partition("/")[0] or ".py" in text.partition(" ")[0]:
        return False
    return "/" in text or "*" in text or Path(text, "config.json").is_file()
