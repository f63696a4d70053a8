"""Lines on how data without splits are divided, and on what is left out of files."""

import re
from collections.abc import Mapping, Sequence

from transformer.data.sources.base import KEPT, SPLITS


def divided_line(counts: Sequence[int] | None, source: str = "data.source") -> list[str]:
    """A line on the size of each split of `source`: numbers of records, or without `counts` shares of the
    text."""
    if counts is None:
        train, validation, test = (f"{high - low:.0%}" for low, high in SPLITS.values())
    else:
        train, validation, test = map("{:,}".format, counts)
    unit = "of its text" if counts is None else "records"
    return [
        f"{source} comes without splits: {train} {unit} to train on, {validation} for validation, {test} "
        "for --mode=evaluate --split=test; with data.validation_source all is trained on"
    ]


def tally_lines(tallies: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each tally (`transformer.data.sources.base.tallied`) on what is kept and left out."""
    lines = []
    for name, tally in tallies.items():
        counts = [f"{count:,} {label}" for label, count in tally.items() if label in KEPT]
        if reasons := {reason: count for reason, count in tally.items() if reason not in KEPT}:
            listed = ", ".join(f"{reason}: {count:,}" for reason, count in reasons.items())
            counts.append(f"{sum(reasons.values()):,} left out ({listed})")
        lines.append(f"{name}: {', '.join(counts)}")
    return lines


def of_all_splits(name: str) -> str:
    """The name of a source without that of its split."""
    return re.sub(rf" \(({'|'.join(SPLITS)})\)$", "", name)
