"""Texts that are longer than a row: which of their tokens are read."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

TooLong = Literal["cut", "head_tail", "windows", "skip", "refuse"]


def count_excerpts(lengths: Sequence[int], room: int, too_long: str, stride: int = 0) -> int:
    """The number of excerpts of a text, or of a pair, with these numbers of tokens (see `excerpt`)."""
    return math.prod(_window_counts(lengths, room, stride)) if too_long == "windows" else 1


def excerpt(
    texts: Sequence[np.ndarray], room: int, too_long: str, stride: int = 0, number: int = 0
) -> list[np.ndarray]:
    """Excerpt number `number` of a text, or of both texts of a pair, for a row with `room` for their tokens.

    A text of n tokens that has room for s < n of them (`fit`) gives, by `too_long`,

    - "head_tail": the first ceil(s / 4) and the last s - ceil(s / 4) tokens (Sun et al. 2019, "How to
      fine-tune BERT for text classification?", section 5.3.1);
    - "windows": w = 1 + ceil((n - s) / stride) windows of s tokens, from token floor(j (n - s) / (w - 1)) for
      j = 0 ... w - 1, so that no window is shorter than another. The default stride is s. Of a pair, every
      window of the first text is read with every window of the second;
    - otherwise its first s tokens.
    """
    lengths = [len(text) for text in texts]
    sizes = fit(lengths, room)
    if too_long == "windows":
        counts = _window_counts(lengths, room, stride)
        places = zip(texts, sizes, counts, np.unravel_index(number, counts), strict=True)
        return [_window(text, size, count, int(j)) for text, size, count, j in places]
    part = _head_tail if too_long == "head_tail" else _head
    return [part(text, size) for text, size in zip(texts, sizes, strict=True)]


def fit(lengths: Sequence[int], room: int) -> list[int]:
    """The lengths of one or two texts when truncated to `room` tokens in all, the longer text first."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first = min(lengths[0], max(room - lengths[1], -(-room // 2)))
    return [first, min(lengths[1], room - first)]


def _head(text: np.ndarray, size: int) -> np.ndarray:
    return text[:size]


def _head_tail(text: np.ndarray, size: int) -> np.ndarray:
    head = -(-size // 4)
    return text if len(text) == size else np.concatenate([text[:head], text[len(text) - size + head :]])


def _window(text: np.ndarray, size: int, count: int, number: int) -> np.ndarray:
    start = number * (len(text) - size) // max(count - 1, 1)
    return text[start : start + size]


def _window_counts(lengths: Sequence[int], room: int, stride: int) -> list[int]:
    """The number of windows of each text."""
    pairs = zip(lengths, fit(lengths, room), strict=True)
    return [1 + (-(-(n - size) // min(stride or size, size)) if n > size else 0) for n, size in pairs]
