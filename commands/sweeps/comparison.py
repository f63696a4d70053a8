"""Conclusions from pairs of runs: their mean difference, and the rates at which each side diverges."""

import argparse
import dataclasses
import math
from typing import Any

from transformer.errors import UserError


@dataclasses.dataclass
class Comparison:
    """The values of A and B in each pair, NaN for a run that has diverged, and the conclusion from them.

    A difference needs two finite values. How often a side diverges is a second question: of the pairs of
    which one run alone has diverged, half are A's if both diverge equally often. Both tests may be looked at
    after every pair, and each has the error rate `flags.error`.
    """

    flags: argparse.Namespace
    pairs: list[tuple[float, float]]

    @property
    def differences(self) -> list[float]:
        """b - a for the pairs in which neither run has diverged."""
        return [b - a for a, b in self.pairs if not math.isnan(b - a)]

    def diverged(self) -> dict[str, Any]:
        """The numbers of pairs, and of the runs of each side that have diverged; {} if none has."""
        counts = {side: sum(math.isnan(pair[i]) for pair in self.pairs) for i, side in enumerate("ab")}
        return {"pairs": len(self.pairs), "diverged": counts} if any(counts.values()) else {}

    def verdict(self) -> str:
        """The conclusion from the differences: "less", "more", "same" or ""."""
        from transformer.evaluation.statistics.sequential import verdict

        differences = self.differences
        return verdict(differences, self.flags.error, self.flags.smallest) if differences else ""

    def diverges(self) -> str:
        """ "a" or "b", the side that is shown to diverge more often, or ""."""
        from transformer.evaluation.statistics.sequential import rate_interval

        alone = [math.isnan(b) for a, b in self.pairs if math.isnan(a) != math.isnan(b)]
        low, high = rate_interval(sum(alone), len(alone), self.flags.error)
        return "b" if low > 0.5 else "a" if high < 0.5 else ""

    def is_decided(self) -> bool:
        """Whether the differences or the divergences show anything."""
        return bool(self.verdict() or self.diverges())

    def estimates(self) -> str:
        """The mean difference and its interval, and those of the rates at which runs have diverged."""
        from transformer.evaluation.statistics.sequential import interval, rate_interval

        flags, differences, parts = self.flags, self.differences, []
        level = f"{100 * (1 - flags.error):.4g} % interval"
        if differences:
            low, high = interval(differences, flags.error)
            name, mean = flags.metric.removeprefix("-"), sum(differences) / len(differences)
            parts.append(f"b - a: {mean:+.4g} {name} ({level} {low:+.4g} to {high:+.4g})")
        if lost := self.diverged():
            rates = []
            for side, count in lost["diverged"].items():
                low, high = rate_interval(count, lost["pairs"], flags.error)
                rates.append(f"{side} {count} of {lost['pairs']} runs ({level} {low:.2g} to {high:.2g})")
            parts.append(f"diverged: {', '.join(rates)}")
        return "; ".join(parts)

    def answer(self) -> str:
        """The answer in words."""
        from transformer.evaluation.statistics.sequential import FURTHEST, pairs_needed

        flags, differences, shown = self.flags, self.differences, self.verdict()
        pairs = f"{len(differences)} pairs" if len(differences) != 1 else "1 pair"
        if lost := len(self.pairs) - len(differences):
            pairs += f" without the {lost} of which a run has diverged"
        better = "more" if flags.metric.startswith("-") else "less"
        answers = [f"{side} diverges more often" for side in [self.diverges()] if side]
        if shown == "same":
            answers.append(f"no difference larger than {flags.smallest:g}")
        elif shown:
            answers.append(f"{'b' if shown == better else 'a'} is better")
        if answers:
            return f"{', '.join(answers)}: {self.estimates()}, {pairs}"
        if len(differences) < 2:
            known = "how much pairs differ is known from 2 on"
            return f"not decided: {self.estimates()}, {pairs}; {known}"
        more = pairs_needed(differences, flags.error, flags.smallest)
        number = f"about {more}" if more else f"more than {FURTHEST:,}"
        return f"not decided: {self.estimates()}, {pairs}; {number} more pairs needed"


def pairs_there(a: str, b: str, metric: str) -> tuple[list[tuple[float, float]], list[str]]:
    """The values of the runs of two patterns that have the same seed, and lines that say which runs are in no
    pair or have diverged.

    Raises:
      UserError: the runs of a pattern differ in more than their seed, or two have the same; or there is no
        pair.
    """
    from commands.sweeps.footnotes import diverged, listed, uncounted, unfinished
    from commands.sweeps.paired import only, pairs
    from commands.table import check_metric, read_runs, rows_of

    metric, sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
    rows, lines = [], []
    for flag, pattern in (("--a", a), ("--b", b)):
        runs, left_out = read_runs([pattern], flag)
        check_metric(metric, runs)
        rows.append(only(rows_of(runs, metric, sign, False), flag))
        lines += left_out
    paired, unpaired = pairs(rows[0], rows[1], metric, "--a", "--b")
    _, unmatched = pairs(rows[1], rows[0], metric, "--b", "--a")
    alone = "--b has no value for the seed"
    for reason, names in {**unpaired, alone: unmatched[alone]}.items():
        lines += listed(f"in no pair, as {reason}", names)
    every = [run for row in rows for run in row.every]
    lines += [*uncounted(rows, metric), *unfinished(every), *diverged(every, metric)]
    if not paired:
        seeds = ", ".join(str(run.config["seed"]) for run in rows[0].runs) or "none"
        raise UserError("; ".join([f"--b: no pair with the seeds of --a, which are {seeds}", *lines]))
    return [(value_a, value_b) for _, value_a, value_b in paired], lines
