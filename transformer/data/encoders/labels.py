"""Names of labels and their indices."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from transformer.errors import UserError, brief

MAX_LISTED_LABELS = 20
"""The most labels that are listed. More labels than this that occur less than twice on average are refused:
they are probably not classes."""

MAX_SHOWN_CHARACTERS = 60
"""Characters of a label that are shown in a message."""


def find_labels(names: Sequence[str], key: str, place: Callable[[int], str] = str) -> list[str]:
    """The distinct labels of the training data in the order of the model's outputs, numerical if all are
    numbers.

    `place` gives the location of a name by its index.

    Raises:
      UserError: fewer than two labels, a record without one, or labels that are not classes: more than
        `MAX_LISTED_LABELS` that are rare, or fractional numbers; the message starts with `key`.
    """
    labels = set(names)
    if "" in labels:
        empty = [index for index, name in enumerate(names) if not name]
        more = f", and {len(empty) - 1:,} more have none" if len(empty) > 1 else ""
        raise UserError(f"data.{key}: {place(empty[0])} has no label{more}; fill them in or leave them out")
    if len(labels) < 2:
        only = ", ".join(map(quoted, labels)) or "none"
        raise UserError(f"data.{key}: all training data have the label {only}; expected two or more")
    some = f"{len(labels):,} labels in {len(names):,} records, {shown(sorted(labels), 3)}"
    if len(labels) > MAX_LISTED_LABELS and len(names) < 2 * len(labels):
        raise UserError(f"data.{key}: {some}: most occur once, and cannot be learned; expected classes")
    whole = all(name.removeprefix("-").isdecimal() for name in labels)
    if len(labels) > MAX_LISTED_LABELS and not whole and _are_numbers(labels):
        raise UserError(f"data.{key}: {some}: they are measurements; expected classes")
    # Of equal numbers, as 1 and 01, the order would be that of the set, which differs between processes.
    return sorted(sorted(labels), key=int if whole else str)


def remarks(labels: Sequence[str]) -> list[str]:
    """Warnings about suspicious labels: those that look alike, and many numbers."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(_as_read(label), []).append(label)
    lines = []
    for same in (same for same in alike.values() if len(same) > 1):
        # Forms of a character look the same unless they are escaped.
        write = repr if len({unicodedata.normalize("NFKC", label) for label in same}) == len(same) else ascii
        problem = f"{len(same)} classes: only case, spaces or the form of characters differ"
        lines.append(f"the labels {', '.join(map(write, same))} are {problem}")
    if len(labels) > MAX_LISTED_LABELS and _are_numbers(labels):
        lines.append(f"the {len(labels)} labels are numbers, and each a class: which are near does not count")
    return lines


def number_labels(names: Sequence[str], labels: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
    """The index of each name among the labels, (n,) int32; `place` gives the location of a name by its index.

    Raises:
      UserError: an unknown label.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    for index, name in enumerate(names):
        if name not in numbers:
            problem = f"has the label {quoted(name)}" if name else "has no label"
            known = f"those of the training data are {shown(labels, MAX_LISTED_LABELS)}"
            remedy = "; give training some with it, or leave it out" if name else ""
            raise UserError(f"{place(index)} {problem}; {known}{remedy}")
    return np.array([numbers[name] for name in names], np.int32)


def count_labels(names: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """The number of occurrences of each label, (c,)."""
    counts = Counter(names)
    return np.array([counts[label] for label in labels])


def shown(labels: Sequence[str], most: int) -> str:
    """The first `most` labels in one line."""
    more = f" and {len(labels) - most:,} more" if len(labels) > most else ""
    return ", ".join(map(quoted, labels[:most])) + more


def quoted(label: str) -> str:
    """The label in quotes; the beginning of a long one, which is rather a text than a label."""
    return repr(brief(label, MAX_SHOWN_CHARACTERS))


def _as_read(label: str) -> str:
    """The label without what a reader does not see: case, white space, forms of a character, and characters
    without a width."""
    shown = "".join(c for c in unicodedata.normalize("NFKC", label) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(shown.casefold().split()))


def _are_numbers(labels: Sequence[str] | set[str]) -> bool:
    try:
        return all(math.isfinite(float(label)) for label in labels)
    except ValueError:
        return False
