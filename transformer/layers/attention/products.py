"""The number of products of attention, for model FLOPs."""

import functools

import numpy as np

from transformer.layers.attention.patterns import Pattern
from transformer.layers.stack import Stack

PAIRS_AT_A_TIME = 2**24
"""Pairs of tokens at a time in which a pattern is counted."""


def attention_products(
    stack: Stack, t: int, *, start: int = 0, causal: bool = False, memory: int = 0
) -> float:
    """The multiplications of attention for each of t queries in all layers, with `start` keys before them:

    sum over layers of the keys of a query x `products_per_pair`, and with cross-attention `memory` more keys.

    Without a pattern a query has all keys: the masked half of causal attention is not deducted, by the
    convention of Chowdhery et al. 2022, "PaLM", appendix B. With one it has those that the pattern and
    causality allow, on average.
    """
    total = 0.0
    for i, mixer in enumerate(stack.mixers):
        pattern, cross = mixer.pattern, stack.block(i).cross_attention
        keys = allowed_pairs(pattern, t, start, causal) / t if pattern else start + t
        total += mixer.products_per_pair * keys
        total += 0 if cross is None else cross.products_per_pair * memory
    return total


@functools.cache
def allowed_pairs(pattern: Pattern, t: int, start: int = 0, causal: bool = False) -> int:
    """The number of pairs that a pattern allows, of t queries from index `start` on and start + t keys."""
    if pattern.relative:
        distance = np.arange(0 if causal else 1 - t, start + t)
        keys = np.minimum(start + t, start + t - distance) - np.maximum(0, start - distance)
        return int(np.sum(keys * pattern(distance, np.zeros_like(distance))))
    pairs, rows, j = 0, max(1, PAIRS_AT_A_TIME // (start + t)), np.arange(start + t, dtype=np.int32)[None]
    for first in range(start, start + t, rows):
        i = np.arange(first, min(first + rows, start + t), dtype=np.int32)[:, None]
        allowed = pattern(i, j) & (j <= i) if causal else pattern(i, j)
        pairs += int(np.count_nonzero(np.broadcast_to(allowed, (len(i), start + t))))
    return pairs
