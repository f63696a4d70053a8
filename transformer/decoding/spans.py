"""The best spans of a text by the scores of their starts and ends."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Span:
    """The tokens `first` to `last` (inclusive) of a text, and their probability; -1 and -1: no answer."""

    first: int
    last: int
    probability: float


def scores_of_spans(windows: Iterable[tuple[int, np.ndarray]], length: int, longest: int) -> np.ndarray:
    """(length, longest) scores: at (i, m) the start logit of i plus the end logit of i + m, for the span of
    tokens i ... i + m.

    A window is the index of its first token and the logits (w, 2) of its tokens. A span in several windows
    has its highest score, as in transformers' `run_qa` (the code released with Devlin et al. 2019 takes the
    one of the window with the most context around its start), a span in none -inf.
    """
    found_cm = np.full((length, longest), -np.inf)
    for first, logits_w2 in windows:
        padded = np.pad(logits_w2[:, 1].astype(np.float64), (0, longest - 1), constant_values=-np.inf)
        ends_wm = np.lib.stride_tricks.sliding_window_view(padded, longest)
        here = found_cm[first : first + len(logits_w2)]
        np.maximum(here, logits_w2[:, :1] + ends_wm, out=here)
    return found_cm


def best_spans(
    scores_cm: np.ndarray,
    n: int,
    nothing: float = -np.inf,
    text: Callable[[Span], object] = lambda span: span,
) -> list[Span]:
    """The (at most) n spans with the highest scores, best first; of spans with the same `text` the best one.

    p(span) = exp(score) / sum over all spans of exp(score), including "no answer" with the score `nothing`.
    """
    scores = np.append(scores_cm.ravel(), nothing)
    weights = np.exp(scores - scores.max())
    p = weights / weights.sum()
    best: dict[object, Span] = {}
    for i in map(int, np.argsort(-scores, kind="stable")):
        if len(best) == n or scores[i] == -np.inf:
            break
        first, further = divmod(i, scores_cm.shape[1])
        none = i == scores_cm.size
        span = Span(-1 if none else first, -1 if none else first + further, float(p[i]))
        best.setdefault(text(span), span)
    return [*best.values()]
