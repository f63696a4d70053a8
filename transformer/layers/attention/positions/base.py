"""The base class of position encodings: five hooks, no-ops by default."""

from typing import ClassVar

import jax
from flax import linen as nn


class Position(nn.Module):
    """A position encoding. Subclasses override one or more of the hooks.

    With queries q, keys k and values v a layer computes, for each head,

    score_ts = score_factor (query_bias(rotate(q_t)) . rotate(k_s)) / sqrt(head_dim) + bias_ts,
    out_t = sum_s weight_ts v_s + values_t,

    where `bias` gets rotate(q), and `values` the weights. Both are called on any subset of queries and keys,
    so they may use only their arguments and parameters.

    A subclass may have these fields: `base`, of the wavelengths (10000 in the original); `max_length`, of the
    longest sequence; `head_dim`; `causal`; `max_distance`; `rms`, the initial root mean square of what
    `embed` adds (0: the encoding's own scale).
    """

    of_head_width: ClassVar[bool] = False
    """Whether it learns vectors of the width of a head, and so needs attention with such heads."""

    per_layer: ClassVar[bool] = False
    """Whether it has parameters in each layer, which the layers of a stack may share."""

    @classmethod
    def has(cls, hook: str) -> bool:
        """Whether this encoding overrides a hook."""
        return getattr(cls, hook) is not getattr(Position, hook)

    def embed(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Changes the sum of embeddings, once, before the first block."""
        return x_btd

    def rotate(self, x_bthk: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Changes queries and keys in every attention layer."""
        return x_bthk

    @property
    def score_factor(self) -> float:
        """The factor of the products of queries and keys."""
        return 1.0

    def query_bias(self, q_bthk: jax.Array) -> jax.Array:
        """Changes the queries in the product with the keys, but not those in `bias`."""
        return q_bthk

    def bias(
        self, q_bthk: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array | None:
        """An addition to the scaled scores, broadcastable to (b, h, t, s), or None."""
        return None

    def values(
        self, weights_bhts: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array | None:
        """An addition (b, t, h, k) to the weighted sums of values, linear in the weights, or None.

        The weights need not sum to 1: a kernel may divide by their sum later.
        """
        return None
