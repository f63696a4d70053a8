"""Linear probes with control tasks: what a linear map reads from a layer, and what it memorises."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.interpret.instruments.base import Batch, Subject, Table

CLASSES, TOKENS, PENALTY = 50, 20_000, 1.0
"""The most labels of a property, the most frequent ones; the most tokens; the ridge penalty."""


def positions(batch: Batch, names: Any) -> np.ndarray:
    """The position in the row, modulo 4."""
    return np.broadcast_to(np.arange(batch.tokens_bt.shape[1]) % 4, batch.tokens_bt.shape)


def previous(batch: Batch, names: Any) -> np.ndarray:
    """The token before; -1 of the first one."""
    return np.pad(batch.tokens_bt[:, :-1], ((0, 0), (1, 0)), constant_values=-1)


def characters(batch: Batch, names: Any) -> np.ndarray:
    """The kind of the first character of the token: 0 a capital, 1 another letter, 2 a digit, 3 white space,
    4 others."""
    kinds = (str.isupper, str.isalpha, str.isdecimal, str.isspace)
    tokens, places_bt = np.unique(batch.tokens_bt, return_inverse=True)
    firsts = [name[:1] for name in names(tokens)]
    labels = [next((i for i, kind in enumerate(kinds) if kind(first)), 4) for first in firsts]
    return np.array(labels)[places_bt.reshape(batch.tokens_bt.shape)]


PROPERTIES: dict[str, Callable[[Batch, Any], np.ndarray]] = {
    "position": positions,
    "previous": previous,
    "character": characters,
}
"""Value of --property -> the labels (b, t) of the tokens of a batch."""


def ridge(x_nd: np.ndarray, labels_n: np.ndarray, penalty: float = PENALTY) -> np.ndarray:
    """(d + 1, c): W that minimises |X W - Y|^2 + penalty |W|^2 in float64, with Y one-hot labels, and the
    last row of W, the intercept, without penalty: (X'X + penalty I) W = X'Y."""
    x_nd = np.pad(np.asarray(x_nd, np.float64), ((0, 0), (0, 1)), constant_values=1)
    y_nc = np.eye(labels_n.max() + 1)[labels_n]
    return np.linalg.solve(
        x_nd.T @ x_nd + penalty * np.diag([1.0] * (x_nd.shape[1] - 1) + [0]), x_nd.T @ y_nc
    )


def accuracy(weights_dc: np.ndarray, x_nd: np.ndarray, labels_n: np.ndarray) -> float:
    """The share of rows whose label has the largest score."""
    return float(np.mean(np.argmax(x_nd @ weights_dc[:-1] + weights_dc[-1], axis=1) == labels_n))


def control_labels(tokens_n: np.ndarray, labels_n: np.ndarray, seed: int = 0) -> np.ndarray:
    """A label for each type of token, drawn as often as labels occur, which a probe can only memorise."""
    types, places_n = np.unique(tokens_n, return_inverse=True)
    return np.random.default_rng(seed).choice(labels_n, len(types))[places_n]


def probe(x_nd: np.ndarray, tokens_n: np.ndarray, labels_n: np.ndarray, half: int) -> np.ndarray:
    """(3,): the accuracies of probes of the labels and of the control task, trained on the first `half` rows
    and measured on all others, and their difference, the selectivity. The units of x are divided by their
    standard deviations in the first half.

    Source: Hewitt & Liang 2019, "Designing and interpreting probes with control tasks", section 2.
    """
    x_nd = (x_nd - x_nd[:half].mean(axis=0)) / np.maximum(x_nd[:half].std(axis=0), 1e-6)
    tasks = labels_n, control_labels(tokens_n, labels_n)
    task, control = (accuracy(ridge(x_nd[:half], y_n[:half]), x_nd[half:], y_n[half:]) for y_n in tasks)
    return np.array([task, control, task - control])


def table(subject: Subject) -> Table:
    """The accuracies of --property by the residual stream before the first layer and after each, on the last
    half of the rows of the validation split."""
    kind = subject.options["property"] or "position"
    patterns, layers = (r"(.*/)?(blocks|encoder|decoder)/(0/input|\d+)", dict[str, list[np.ndarray]]())
    tokens, labels, rows = [], [], [0]
    for batch in subject.recorded("validation", "**/0/input", "**/*"):
        labels_bt = PROPERTIES[kind](batch, subject.names)
        for path, x in batch.values.items():
            if re.fullmatch(patterns, path) and x.shape[:2] == batch.tokens_bt.shape:
                layers.setdefault(path, []).extend(
                    x_td[valid_t] for x_td, valid_t in zip(x, batch.valid_bt, strict=True)
                )
        for row in zip(batch.tokens_bt, labels_bt, batch.valid_bt, strict=True):
            tokens.append(row[0][row[2]])
            labels.append(row[1][row[2]])
            rows.append(rows[-1] + len(tokens[-1]))
        if rows[-1] > TOKENS:
            break
    tokens_n, labels_n = np.concatenate(tokens), np.concatenate(labels)
    values, counts = np.unique(labels_n[labels_n >= 0], return_counts=True)
    common = values[np.argsort(-counts, kind="stable")[:CLASSES]]
    if len(common) < 2:
        raise UserError(f"--property: {kind}: {len(common)} labels in the data; expected at least 2")
    chosen_n = np.isin(labels_n, common)
    half = int(chosen_n[: rows[len(rows) // 2]].sum())
    labels_n = np.searchsorted(np.sort(common), labels_n[chosen_n])
    results = [
        probe(np.concatenate(x)[chosen_n], tokens_n[chosen_n], labels_n, half) for x in layers.values()
    ]
    share = np.bincount(labels_n[half:]).max() / max(1, len(labels_n) - half)
    title = f"the accuracy of linear probes of {kind}, {len(common)} labels, the most frequent {share:.3f}"
    return Table(title, np.array(results), [*layers], ["task", "control", "selectivity"])
