"""Errors of a run's functions against float64, and their bounds."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from commands.verification.float64 import Size

CHOICE = 4.0
"""Examples whose argmax may be another: terms that are counts, as an accuracy, jump by one for each."""

MASKED = 1e6
"""The size from which a value stands for infinity, as logits of padding do, and is not compared."""


@dataclasses.dataclass(frozen=True)
class Precision:
    """The types that errors are bounded by: the epsilon of the type in which arrays are stored between
    operations, and of the one in which products are summed."""

    stored: float
    summed: float

    def bound(self, size: Size) -> float:
        """The largest relative error of a result of that size: (stored + summed sqrt(length)) sqrt(depth).
        Its derivation is in docs/reliability.md."""
        return (self.stored + self.summed * math.sqrt(size.length)) * math.sqrt(max(size.depth, 1))


@dataclasses.dataclass(frozen=True)
class Row:
    """The error of a part of the run, and its bound."""

    part: str
    name: str
    error: float
    bound: float

    @property
    def passes(self) -> bool:
        """Whether it is within; an error that is not a number is not."""
        return self.error <= self.bound


def error_of(here: Any, there: Any, least: float = 0.0) -> float:
    """|here - there| / max(|there|, least) in the Euclidean norm; entries beyond `MASKED` are left out."""
    here, there = np.asarray(here, np.float64), np.asarray(there, np.float64)
    if here.shape != there.shape:
        return math.inf
    compared = ~(np.abs(there) > MASKED)
    difference = np.linalg.norm((here - there)[compared])
    size = max(float(np.linalg.norm(there[compared])), least, 1e-12)
    return float(difference) / size if difference else 0.0


def terms(part: str, here: Any, there: Any, optimised: Any, bound: float) -> Iterator[Row]:
    """The means of the terms of a loss. Those that are not `optimised` may be counts of an argmax."""
    for name, expected in there.items():
        weight = float(np.max(np.abs(expected.weight)))
        least = max(abs(float(expected.total)), weight, 1e-12)
        error = abs(float(here[name].total) - float(expected.total)) / least
        yield Row(part, name, error, bound if name in optimised else bound + CHOICE / max(weight, 1.0))


def by_module(part: str, here: Any, there: Any, bound: float) -> Iterator[Row]:
    """The arrays of two trees, with an error relative to the largest array of the same module at least to a
    tenth: a bias before a softmax has gradient 0, and would have no relative error."""
    paths, expected = zip(*jax.tree_util.tree_leaves_with_path(there), strict=True)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    largest: dict[str, float] = {}
    for name, x in zip(names, expected, strict=True):
        module = name.rpartition("/")[0]
        largest[module] = max(largest.get(module, 0.0), float(np.linalg.norm(x)))
    whole = math.sqrt(sum(size**2 for size in largest.values()))
    for name, x, y in zip(names, jax.tree.leaves(here), expected, strict=True):
        least = max(largest[name.rpartition("/")[0]] / 10, whole / 1e4)
        yield Row(part, name, error_of(x, y, least), bound)
