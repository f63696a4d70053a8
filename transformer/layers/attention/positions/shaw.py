"""Relative positions of Shaw et al.: learned vectors of the distance, added to keys and values."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention.positions.base import Position


class Shaw(Position):
    """score_ts + q_t . a^K_c / sqrt(k) and out_t + sum_s weight_ts a^V_c with c = clip(s - t, -r, r),

    r = `max_distance`, from two tables (2 r + 1, k) that the heads of a layer share. `head_dim` must be set.
    Source: Shaw et al. 2018, section 3. No (t, s, k) array is computed (their section 3.3): queries are
    multiplied with every row once and gathered by distance; weights are summed by distance before they are
    multiplied with the rows.
    """

    head_dim: int = 0
    max_distance: int = 16

    of_head_width: ClassVar[bool] = True
    per_layer: ClassVar[bool] = True

    def bias(
        self, q_bthk: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array:
        """(b, h, t, s) float32."""
        table = self._table("key", q_bthk.shape[-1])
        products = jnp.einsum("bthk,rk->bhtr", q_bthk.astype(jnp.float32), table)
        return self._pick(products / math.sqrt(table.shape[1]), query_positions_bt, key_positions_bs)

    def values(
        self, weights_bhts: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array:
        """(b, t, h, k) float32."""
        table = self._table("value", self.head_dim)
        sums_shape = jax.ShapeDtypeStruct((*weights_bhts.shape[:3], table.shape[0]), jnp.float32)
        # Summing by distance is the transpose of gathering by distance.
        sum_by_distance = jax.linear_transpose(
            lambda x: self._pick(x, query_positions_bt, key_positions_bs), sums_shape
        )
        (sums,) = sum_by_distance(weights_bhts.astype(jnp.float32))
        return jnp.einsum("bhtr,rk->bthk", sums, table)

    @nn.compact
    def _table(self, name: str, width: int) -> jax.Array:
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("distances", "head_dim"))
        return self.param(name, init, (2 * self.max_distance + 1, width), jnp.float32)

    def _pick(
        self, by_distance: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array:
        """(b, h, t, 2 r + 1) -> (b, h, t, s)."""
        offset_bts = key_positions_bs[:, None, :] - query_positions_bt[:, :, None]
        row_bts = jnp.clip(offset_bts, -self.max_distance, self.max_distance) + self.max_distance
        return jnp.take_along_axis(by_distance, row_bts[:, None], axis=-1)
