"""The best pieces of a text, from the scores of where a piece begins and where it ends."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Span:
    """The tokens `first` to `last` of a text, both included, with their probability; -1 and -1: nothing."""

    first: int
    last: int
    probability: float


def scores_of_spans(windows: Iterable[tuple[int, np.ndarray]], length: int, longest: int) -> np.ndarray:
    """(length, longest) scores: at (i, m) start logit of i + end logit of i + m, of the tokens i ... i + m.

    A window is the number of its first token and the logits (w, 2) of its tokens; a span that several windows
    hold has its highest score of them (Devlin et al. 2019, section 4.2 and the released code), one that none
    holds -inf.
    """
    found_cm = np.full((length, longest), -np.inf)
    for first, logits_w2 in windows:
        padded = np.pad(logits_w2[:, 1].astype(np.float64), (0, longest - 1), constant_values=-np.inf)
        ends_wm = np.lib.stride_tricks.sliding_window_view(padded, longest)
        here = found_cm[first : first + len(logits_w2)]
        np.maximum(here, logits_w2[:, :1] + ends_wm, out=here)
    return found_cm


def best_spans(scores_cm: np.ndarray, n: int, nothing: float = -np.inf) -> list[Span]:
    """The n spans of the highest scores, or as many as there are, the best first.

    p(span) = exp(score) / sum over all spans of exp(score), with "nothing" among them where it has a score.
    """
    scores = np.append(scores_cm.ravel(), nothing)
    weights = np.exp(scores - scores.max())
    p = weights / weights.sum()
    order = np.argsort(-scores, kind="stable")[:n]
    widths = scores_cm.shape[1]
    return [
        Span(-1, -1, float(p[i]))
        if i == scores_cm.size
        else Span(i // widths, i // widths + i % widths, float(p[i]))
        for i in order.tolist()
        if scores[i] > -np.inf
    ]
