"""The scores of attention with a position encoding that takes part in them."""

import dataclasses
from typing import Any

import jax
from flax import struct

from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.positions import Position


@struct.dataclass
class PositionScoring(Scoring):
    """score(i, j) = cap(scale query_bias(q_i) . k_j + bias(q_i, i, j)), out_i = sum_j w_ij v_j + values(w_i):
    a `Scoring` with the hooks of `position`, an unbound module with the parameters `params`; they get
    `query_positions_bt` and `key_positions_bs`.
    """

    position: Position = struct.field(pytree_node=False, kw_only=True)  # type: ignore[misc]

    def queries(self, q_bhtk: jax.Array) -> jax.Array:
        """See `Scoring.queries`."""
        return self._call("query_bias", q_bhtk.swapaxes(1, 2)).swapaxes(1, 2)

    def with_bias(self, scores_bhts: jax.Array, q_bhtk: jax.Array) -> jax.Array:
        """See `Scoring.with_bias`."""
        bias = self._call("bias", q_bhtk.swapaxes(1, 2), self.query_positions_bt, self.key_positions_bs)
        return scores_bhts if bias is None else scores_bhts + bias

    def with_values(self, out_bhtk: jax.Array, weights_bhts: jax.Array) -> jax.Array:
        """See `Scoring.with_values`."""
        added_bthk = self._call("values", weights_bhts, self.query_positions_bt, self.key_positions_bs)
        return out_bhtk if added_bthk is None else out_bhtk + added_bthk.swapaxes(1, 2)

    def block(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> "PositionScoring":
        """See `Scoring.block`."""
        cut: Any = jax.lax.dynamic_slice_in_dim
        queries_bt, keys_bs = cut(self.query_positions_bt, t0, t, 1), cut(self.key_positions_bs, s0, s, 1)
        return dataclasses.replace(self, query_positions_bt=queries_bt, key_positions_bs=keys_bs)

    def _call(self, hook: str, *inputs) -> jax.Array:
        return self.position.apply({"params": self.params}, *inputs, method=hook)  # type: ignore[return-value]
