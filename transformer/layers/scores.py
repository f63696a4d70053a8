"""How attention scores follow from products of queries and keys, for a kernel to apply to any block."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.layers.positions import Position


@struct.dataclass
class Scoring:
    """score(i, j) = cap(scale query_bias(q_i) . k_j + bias(q_i, i, j)), cap(x) = c tanh(x / c); with a sink

    w_ij = exp score(i, j) / (exp sink + sum_j exp score(i, j)),    out_i = sum_j w_ij v_j + values(w_i).

    - `position`, unbound, with its `params`: its hooks are called with `query_positions_bt` and
      `key_positions_bs`; None: no bias;
    - `soft_cap` c keeps scores within (-c, c); 0: does nothing (Gemma Team 2024, Gemma 2, section 2);
    - `sinks_h`, attention sinks: the score, per head, of a key whose value is zero (Xiao et al. 2024,
      StreamingLLM, section 3.3, learned); None: none;
    - `scale`; 0: 1 / sqrt(k), k the width of a key (Vaswani et al. 2017, section 3.2.1).
    """

    query_positions_bt: jax.Array | None = None
    key_positions_bs: jax.Array | None = None
    params: Any = None
    sinks_h: jax.Array | None = None
    position: Position | None = struct.field(pytree_node=False, default=None)
    soft_cap: float = struct.field(pytree_node=False, default=0.0)
    scale: float = struct.field(pytree_node=False, default=0.0)

    def has(self, hook: str) -> bool:
        """Whether there is a position that overrides a hook of `Position`."""
        return self.position is not None and self.position.has(hook)

    def scores(self, q_bhtk: jax.Array, k_bgsk: jax.Array) -> jax.Array:
        """Float32 scores (b, h, t, s), unmasked, of head-major queries and keys, which h / g heads share."""
        b, h, t, k = q_bhtk.shape
        g, s = k_bgsk.shape[1:3]
        q_bgpk = self.queries(q_bhtk).reshape(b, g, (h // g) * t, k)
        products = jnp.einsum("bgpk,bgsk->bgps", q_bgpk, k_bgsk, preferred_element_type=jnp.float32)
        return self.finish(products.reshape(b, h, t, s), q_bhtk)

    def queries(self, q_bhtk: jax.Array) -> jax.Array:
        """The queries that the keys are multiplied with."""
        if self.position is None:
            return q_bhtk
        q_bthk = q_bhtk.swapaxes(1, 2)
        return self.position.apply({"params": self.params}, q_bthk, method="query_bias").swapaxes(1, 2)

    def finish(self, products_bhts: jax.Array, q_bhtk: jax.Array) -> jax.Array:
        """The scores that come of the products of queries and keys."""
        scores = products_bhts * (self.scale or 1 / math.sqrt(q_bhtk.shape[-1]))
        bias = self._ask("bias", q_bhtk.swapaxes(1, 2))
        scores = scores if bias is None else scores + bias
        return self.soft_cap * jnp.tanh(scores / self.soft_cap) if self.soft_cap else scores

    def values(self, weights_bhts: jax.Array) -> jax.Array | None:
        """What the position encoding adds to the weighted sums of values, (b, h, t, k), or None."""
        added_bthk = self._ask("values", weights_bhts)
        return None if added_bthk is None else added_bthk.swapaxes(1, 2)

    def block(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> "Scoring":
        """The same for queries t0 ... t0 + t and keys s0 ... s0 + s alone."""
        return self._at(
            lambda x_bt, axis: jax.lax.dynamic_slice_in_dim(x_bt, (t0, s0)[axis], (t, s)[axis], 1)
        )

    def pad(self, t: int, s: int) -> "Scoring":
        """The same for queries and keys lengthened to t and s, at positions of no meaning."""
        return self._at(lambda x_bt, axis: jnp.pad(x_bt, ((0, 0), (0, (t, s)[axis] - x_bt.shape[1]))))

    def _at(self, change: Callable[[jax.Array, int], jax.Array]) -> "Scoring":
        if self.query_positions_bt is None or self.key_positions_bs is None:
            return self
        queries, keys = change(self.query_positions_bt, 0), change(self.key_positions_bs, 1)
        return dataclasses.replace(self, query_positions_bt=queries, key_positions_bs=keys)

    def _ask(self, hook: str, x: jax.Array) -> jax.Array | None:
        if self.position is None:
            return None
        places = self.query_positions_bt, self.key_positions_bs
        return self.position.apply({"params": self.params}, x, *places, method=hook)
