"""F1 scores, and the confusion matrix as text."""

from collections.abc import Sequence

import numpy as np

from transformer.data.line_escapes import in_a_line
from transformer.errors import brief

WIDE = 12
"""The most classes whose confusion matrix is printed; of more, the most frequent confusions are listed."""


def f1_scores(confusion_cc: np.ndarray) -> np.ndarray:
    """F1 = 2 TP / (2 TP + FP + FN) of each class, from counts (label, prediction); 0 for a class that neither
    occurs nor is predicted."""
    hits = np.diag(confusion_cc)
    counts_c = confusion_cc.sum(axis=0) + confusion_cc.sum(axis=1)
    return np.divide(2 * hits, counts_c, out=np.zeros(len(hits)), where=counts_c > 0)


def macro_f1(confusion_cc: np.ndarray) -> float:
    """The mean of `f1_scores` over the classes that occur or are predicted, 0 if there are none
    (scikit-learn's `f1_score` with average="macro")."""
    present = (confusion_cc.sum(axis=0) + confusion_cc.sum(axis=1)) > 0
    return float(f1_scores(confusion_cc)[present].mean()) if present.any() else 0.0


def confusion_lines(confusion_cc: np.ndarray, labels: Sequence[str]) -> list[str]:
    """A matrix of counts (label, prediction) as a table with recall, precision and F1 of each label; for more
    than `WIDE` labels, a list of the most frequent confusions."""
    names = [brief(in_a_line(label), 20) for label in labels]
    if len(names) > WIDE:
        wrong_cc = confusion_cc - np.diag(np.diag(confusion_cc))
        order = np.argsort(-wrong_cc, axis=None, kind="stable")[:WIDE]
        pairs = [divmod(int(place), len(names)) for place in order]
        listed = [
            f"  {wrong_cc[i, j]:,} of {confusion_cc[i].sum():,} {labels[i]!r} as {labels[j]!r}"
            for i, j in pairs
            if wrong_cc[i, j]
        ]
        return [f"  of {len(names)} labels, those most often taken for another:", *listed]
    hits, f1 = np.diag(confusion_cc), f1_scores(confusion_cc)
    guessed, true = confusion_cc.sum(axis=0), confusion_cc.sum(axis=1)
    rows = [["label \\ predicted", *names, "recall", "precision", "F1"]]
    for i, name in enumerate(names):
        scores = (_share(hits[i], true[i]), _share(hits[i], guessed[i]), f"{f1[i]:.4f}")
        rows.append([name, *(f"{n:,}" for n in confusion_cc[i]), *scores])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
