"""The rows of a table against one of them: differences between runs of the same seed."""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from commands.sweeps.algebra import shortened
from commands.sweeps.footnotes import listed
from commands.sweeps.rows import DIVERGED, Row, Trained, label, or_null, rank
from transformer.errors import UserError, suggest
from transformer.evaluation.statistics.paired_differences import interval

ERROR = 0.05
"""The probability that a true difference is outside of its interval."""


@dataclasses.dataclass(frozen=True)
class Change(Row):
    """A row with only those keys that differ from another row's, and its differences from that row: of pairs
    of which that row's run has not diverged, NaN where its own has. `at` has further keys, whose values are
    the same in both."""

    differences: list[float]
    at: dict[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def columns(self) -> dict[str, Any]:
        """The keys with the same value in both rows."""
        return self.at

    def heading(self, metric: str) -> list[str]:
        """The headings of `cells`."""
        return ["change", metric, "difference", f"{1 - ERROR:.0%} interval", "pairs"]

    def cells(self) -> list[str]:
        """The change, the mean of its runs, and the mean difference with its interval."""
        keys = {key: value for key, value in self.keys.items() if key not in self.at}
        low, high = self.interval
        ends = f"{low:+.4f} to {high:+.4f}" if math.isfinite(low) else ""
        mean = DIVERGED if self.has_diverged else f"{self.mean:.4f}"
        difference = "" if math.isnan(self.mean_difference) else f"{self.mean_difference:+.4f}"
        change = label(dataclasses.replace(self, keys=keys))
        return [change, mean, difference, ends, str(len(self.differences))]

    @property
    def mean_difference(self) -> float:
        """The mean difference; NaN without any, or if a run has diverged."""
        known = self.differences and not self.has_diverged
        return statistics.fmean(self.differences) if known else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the mean difference; all numbers, if that is NaN."""
        if math.isnan(self.mean_difference):
            return -math.inf, math.inf
        return interval(self.differences, ERROR)

    def more(self) -> dict[str, Any]:
        """Differences and interval (null: infinite, or of runs that have diverged)."""
        lists = {"differences": self.differences, "interval": self.interval}
        return {name: [*map(or_null, numbers)] for name, numbers in lists.items()}

    @property
    def is_shown(self) -> bool:
        """Whether zero is outside of the interval."""
        low, high = self.interval
        return low > 0 or high < 0


Pair = tuple[int, float, float]
"""A seed, and the values of two runs that have it, NaN for one that has diverged."""


def changes(
    rows: Sequence[Row], against: Sequence[Trained], metric: str, sign: int, at: Sequence[str] = ()
) -> tuple[list[Change], list[str]]:
    """Every other row with a pair against the one that has the runs `against`, the best difference first; and
    lines that say which runs are in no difference, and why. With keys `at`, whole or as in the heading of a
    table, this holds for each set of their values, in ascending order.

    Raises:
      UserError: these are of several rows, or none has measured the metric; no other run has a seed of
        theirs, or two of a row have the same; or the runs do not differ in a key of `at`.
    """
    paths = {run.path for run in against}
    keys = [_whole(name, [*rows[0].keys]) for name in at]
    compared: list[Change] = []
    left_out: dict[str, list[str]] = {}
    baseline: list[Trained] = []
    for group in _groups(rows, keys):
        plain = [row for row in group if any(run.path in paths for run in row.every)]
        hint = "" if at else "; --at=KEY compares at each value of a key"
        if not plain or not only(plain, "--against", hint).runs:
            reason = f"no --against run with their {', '.join(shortened(keys))} has measured {metric}"
            names = [run.path.name for row in group if row not in plain for run in row.runs]
            left_out.setdefault(reason, []).extend(names)
            continue
        baseline += plain[0].runs
        differences = []
        for row in group:
            if row is not plain[0]:
                change, why = _change(row, plain[0], metric, keys)
                differences += [change] if change else []
                for reason, names in why.items():
                    left_out.setdefault(reason, []).extend(names)
        compared += sorted(differences, key=lambda row: rank(sign * row.mean_difference))
    if not baseline:
        raise UserError(f"--against: no run has measured {metric}")
    if not compared:
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.config["seed"] for run in baseline))
        raise UserError(f"--against: no other run has measured {metric} with one of its seeds, {seeds}")
    return compared, [
        line for why, names in left_out.items() for line in listed(f"in no difference, as {why}", names)
    ]


def _whole(name: str, keys: Sequence[str]) -> str:
    """The key that a name is, or is short for in the heading of a table of these keys."""
    whole = dict(zip(shortened(keys), keys, strict=True)) | {key: key for key in keys}
    if name not in whole:
        raise UserError(f"--at: the runs do not differ in {name!r}; {suggest(name, keys)}")
    return whole[name]


def _groups(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Row]]:
    """The rows with the same values of some keys together; numbers ascend, before other values."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row.keys[key] for key in keys]), []).append(row)

    def place(group: list[Row]) -> list[tuple[bool, float, str]]:
        values = [group[0].keys[key] for key in keys]
        return [(False, x, "") if isinstance(x, (int, float)) else (True, 0, str(x)) for x in values]

    return sorted(groups.values(), key=place)


def _change(
    row: Row, plain: Row, metric: str, at: Sequence[str]
) -> tuple[Change | None, dict[str, list[str]]]:
    """A row as a change of the plain one, None without a pair; and its runs in no difference, by reason."""
    paired, left_out = pairs(plain, row, metric, "--against", "--against")
    lost = {seed for seed, expected, value in paired if math.isnan(expected) and not math.isnan(value)}
    names = [run.path.name for run in row.runs if run.config["seed"] in lost]
    left_out["the --against run of the seed has diverged"] = names
    if not paired:
        return None, left_out
    same = {key: row.keys[key] for key in at}
    keys = same | {key: value for key, value in row.keys.items() if value != plain.keys[key]}
    differences = [value - expected for seed, expected, value in paired if seed not in lost]
    return Change(keys, row.runs, row.values, differences, at=same, uncounted=row.uncounted), left_out


def only(rows: Sequence[Row], flag: str, hint: str = "") -> Row:
    """The row, if it is the only one. Raises `UserError` if there are several."""
    if len(rows) > 1:
        differing = [key for key in rows[0].keys if len({repr(row.keys[key]) for row in rows}) > 1]
        keys = ", ".join(shortened(differing))
        raise UserError(
            f"{flag}: its runs differ in {keys}; expected runs that differ in their seed alone{hint}"
        )
    return rows[0]


def pairs(a: Row, b: Row, metric: str, flag_a: str, flag_b: str) -> tuple[list[Pair], dict[str, list[str]]]:
    """The pairs of runs of one seed, and the runs of `b` that are in none, by the reason.

    Two runs of equal length are a pair if they have measured the metric last at the same step; two of other
    lengths if both are finished. One that has diverged is paired wherever it ended.

    Raises:
      UserError: two runs of a row have the same seed; the flag is that of its runs.
    """
    of_a, of_b = _by_seed(a, flag_a), _by_seed(b, flag_b)
    paired: list[Pair] = []
    left_out: dict[str, list[str]] = {
        f"{flag_a} has no value for the seed": [],
        f"the {flag_a} run of the seed was measured at another step": [],
    }
    alone, elsewhere = left_out.values()
    for seed, (run, value) in of_b.items():
        if seed not in of_a:
            alone.append(run.path.name)
            continue
        partner, expected = of_a[seed]
        if math.isnan(value + expected) or _as_far(run, partner, metric):
            paired.append((seed, expected, value))
        else:
            elsewhere.append(f"{run.path.name} at {run.step_of(metric)}, not {partner.step_of(metric)}")
    return sorted(paired), left_out


def _as_far(run: Trained, partner: Trained, metric: str) -> bool:
    """Whether two runs have measured a metric at the same place of their training."""
    if run.steps == partner.steps:
        return run.step_of(metric) == partner.step_of(metric)
    return all(trained.last_step >= trained.steps for trained in (run, partner))


def _by_seed(row: Row, flag: str) -> dict[int, tuple[Trained, float]]:
    by_seed: dict[int, tuple[Trained, float]] = {}
    for run, value in zip(row.runs, row.values, strict=True):
        if (seed := run.config["seed"]) in by_seed:
            raise UserError(f"{flag}: two runs have seed {seed}, {run.path} is one; expected one of each")
        by_seed[seed] = run, value
    return by_seed
