"""`Mask` describes who may attend to whom; only the reference path materialises it."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from transformer.errors import UserError
from transformer.layers.patterns import Pattern


@struct.dataclass
class Mask:
    """Which keys each query may see, as data that a kernel can read before it multiplies anything.

    A query at index i of its row sees the key at index j when every given condition holds:

    - `causal`: j <= i;
    - `pattern`, of `PATTERNS`: it says so of i and j;
    - segments: `query_segments[i] == key_segments[j]` (documents packed into one row stay apart);
    - `key_valid[j]`: the key is real, not padding or an unfilled slot of a cache.

    `origins` (b) says where each row begins on both axes (None: at 0), for patterns that count from there.
    `query_indices` (b, t) says where the queries stand on the key axis; None means 0, 1, ... t - 1.
    `key_indices` (b, s) likewise where the keys do, which a ring holds in another order.
    With `ancestors` (m, r, s) each r rows in turn share their keys and values: of the r at index j, row i of
    them sees only that of row `ancestors[i, j]`, which kernels read beside the dense mask.
    """

    query_segments_bt: jax.Array | None = None
    key_segments_bs: jax.Array | None = None
    key_valid_bs: jax.Array | None = None
    query_indices_bt: jax.Array | None = None
    key_indices_bs: jax.Array | None = None
    ancestors_mrs: jax.Array | None = None
    origins_b: jax.Array | None = None
    causal: bool = struct.field(pytree_node=False, default=False)
    pattern: Pattern | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self) -> None:
        if (self.query_segments_bt is None) != (self.key_segments_bs is None):
            raise UserError("segments: give both query_segments_bt and key_segments_bs, or neither")

    def pick(self, indices_s: jax.Array) -> "Mask":
        """The same for the keys at these indices alone; those below 0 are not seen."""

        def of(x: jax.Array | None) -> jax.Array | None:
            return x if x is None or x.shape[-1] == 1 else x[..., jnp.maximum(indices_s, 0)]

        valid_bs, there_1s = of(self.key_valid_bs), indices_s[None] >= 0
        return dataclasses.replace(
            self,
            key_segments_bs=of(self.key_segments_bs),
            key_valid_bs=there_1s if valid_bs is None else there_1s & valid_bs,
            ancestors_mrs=of(self.ancestors_mrs),
            key_indices_bs=indices_s[None],
        )

    def dense(self, t: int, s: int) -> jax.Array:
        """The whole mask, True where attention is allowed: broadcastable to (b, 1, t, s)."""
        return self.block(0, t, 0, s)

    def block(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> jax.Array:
        """The part for t queries from t0 on and s keys from s0 on: broadcastable to (b, 1, t, s)."""

        def queries(x_bt: jax.Array) -> jax.Array:
            return _cut(x_bt, t0, t)[:, :, None]

        def keys(x_bs: jax.Array) -> jax.Array:
            return _cut(x_bs, s0, s)[:, None]

        allowed = jnp.ones((1, t, s), bool)
        j = s0 + jnp.arange(s)[None, None] if self.key_indices_bs is None else keys(self.key_indices_bs)
        if self.query_indices_bt is None:
            i = t0 + jnp.arange(t)[None, :, None]
        else:
            i = queries(self.query_indices_bt)
        if self.causal:
            allowed &= j <= i
        if self.pattern is not None:
            origin = 0 if self.origins_b is None else self.origins_b[:, None, None]
            allowed &= self.pattern(i - origin, j - origin)
        if self.query_segments_bt is not None and self.key_segments_bs is not None:
            allowed &= queries(self.query_segments_bt) == keys(self.key_segments_bs)
        if self.key_valid_bs is not None:
            allowed &= keys(self.key_valid_bs)
        return allowed[:, None]

    def pad(self, t: int, s: int, whole_t: int, whole_s: int) -> "Mask":
        """The same for t queries and s keys lengthened to `whole_t` and `whole_s`, which no one sees."""
        added = whole_s - s
        valid_bs = jnp.ones((1, s), bool) if self.key_valid_bs is None and added else self.key_valid_bs
        return dataclasses.replace(
            self,
            query_segments_bt=_lengthened(self.query_segments_bt, whole_t - t),
            query_indices_bt=_lengthened(self.query_indices_bt, whole_t - t),
            key_segments_bs=_lengthened(self.key_segments_bs, added),
            key_indices_bs=_lengthened(self.key_indices_bs, added),
            key_valid_bs=_lengthened(valid_bs, added),
        )


def _cut(x_bt: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    # One value may stand for a whole row.
    return x_bt if x_bt.shape[1] == 1 else jax.lax.dynamic_slice_in_dim(x_bt, start, size, 1)


def _lengthened(x_bt: jax.Array | None, by: int) -> jax.Array | None:
    return x_bt if x_bt is None or not by or x_bt.shape[1] == 1 else jnp.pad(x_bt, ((0, 0), (0, by)))
