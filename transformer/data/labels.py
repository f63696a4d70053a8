"""Names of labels, and the numbers that a model knows them by."""

from collections.abc import Callable, Sequence

import numpy as np

from transformer.errors import UserError


def find_labels(names: Sequence[str], key: str) -> list[str]:
    """The labels that occur in training data, in the order of the model's outputs: as numbers where all are.

    Raises:
      UserError: there are fewer than two; the error begins with `key`.
    """
    found = set(names)
    if len(found) < 2:
        only = ", ".join(map(repr, found)) or "none"
        raise UserError(f"data.{key}: all training data have the label {only}; expected two or more")
    numbers = all(name.removeprefix("-").isdecimal() for name in found)
    return sorted(found, key=int if numbers else str)


def number_labels(names: Sequence[str], labels: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
    """The number of each name among the labels, (n,) int32; `place` says where the i-th name is, from 1.

    Raises:
      UserError: one is not among them.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    for index, name in enumerate(names, 1):
        if name not in numbers:
            known = ", ".join(map(repr, labels))
            problem = f"has the label {name!r}; those of the training data are {known}"
            raise UserError(f"{place(index)} {problem}")
    return np.array([numbers[name] for name in names], np.int32)


def count_labels(names: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """How often each label occurs, (c,)."""
    return np.array([names.count(label) for label in labels])
