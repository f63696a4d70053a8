"""Relative position biases of T5: a learned bias for each head and bucket of distances."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.positions.base import Position


def bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
    """The smallest distance in each of n buckets: 0, 1, ... e - 1, then e (max_distance / e)^(i / (n - e)),

    rounded up, with e = n // 2 and i = 0 ... n - e - 1: one distance per bucket, then logarithmically more.
    The starts are computed with integers: a rounded logarithm may be off by one at the edges.

    Raises:
      UserError: too few buckets, or `max_distance` too small.
    """
    exact = num_buckets // 2
    wide = num_buckets - exact
    if not 0 < exact < max_distance:
        raise UserError(
            f"max_distance: {max_distance} with {num_buckets} buckets to a side; expected at least 2 buckets "
            f"and a distance of more than {exact}"
        )
    bounds = [exact ** (wide - i) * max_distance**i for i in range(wide)]
    distances = range(exact, max_distance + 1)
    return [*range(exact), *(next(d for d in distances if d**wide >= bound) for bound in bounds)]


class T5(Position):
    """score_ts + table[bucket(s - t), h] with a learned table (num_buckets, heads).

    Half of the buckets are for keys after the query. With `causal` there are none for them, and such keys
    have distance 0. The last bucket of a side has all distances from `max_distance` on, and some below it.
    Source: Raffel et al. 2020 (T5), section 2.1, and the authors' code for the bounds; T5's layers share one
    table, as with `model.share_position`.
    """

    causal: bool = False
    num_buckets: int = 32
    max_distance: int = 128

    per_layer: ClassVar[bool] = True

    @nn.compact
    def bias(
        self, q_bthk: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array:
        """(b, h, t, s) float32."""
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("buckets", "heads"))
        table = self.param("table", init, (self.num_buckets, q_bthk.shape[2]), jnp.float32)
        bucket_bts = self.bucket(key_positions_bs[:, None, :] - query_positions_bt[:, :, None])
        return jnp.moveaxis(table.T[:, bucket_bts], 0, 1)

    def bucket(self, offset: jax.Array) -> jax.Array:
        """The bucket of each offset, key position - query position."""
        side = self.num_buckets if self.causal else self.num_buckets // 2
        starts = jnp.array(bucket_starts(side, self.max_distance)[1:])
        distance = jnp.maximum(-offset, 0) if self.causal else jnp.abs(offset)
        bucket = jnp.searchsorted(starts, distance, side="right", method="compare_all")
        return bucket if self.causal else bucket + jnp.where(offset > 0, side, 0)
