"""`Mask` describes who may attend to whom; only the reference path materialises it."""

import jax
import jax.numpy as jnp
from flax import struct

from transformer.errors import UserError


@struct.dataclass
class Mask:
    """Which keys each query may see, as data that a kernel can read before it multiplies anything.

    A query at index i of its row sees the key at index j when every given condition holds:

    - `causal`: j <= i;
    - `window` = n: i - n < j, so that with `causal` exactly n keys are seen, itself included;
    - segments: `query_segments[i] == key_segments[j]` (documents packed into one row stay apart);
    - `key_valid[j]`: the key is real, not padding or an unfilled slot of a cache.

    `query_indices` (b, t) says where the queries stand on the key axis; None means 0, 1, ... t - 1.
    With `ancestors` (m, r, s) each r rows in turn share their keys and values: of the r at index j, row i of
    them sees only that of row `ancestors[i, j]`, which kernels read beside the dense mask.
    """

    query_segments_bt: jax.Array | None = None
    key_segments_bs: jax.Array | None = None
    key_valid_bs: jax.Array | None = None
    query_indices_bt: jax.Array | None = None
    ancestors_mrs: jax.Array | None = None
    causal: bool = struct.field(pytree_node=False, default=False)
    window: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(f"window: {self.window} keys; expected at least 1, or None for no window")
        if self.window is not None and not self.causal:
            raise UserError(f"window: {self.window} without causal; a window looks back, so set causal")
        if (self.query_segments_bt is None) != (self.key_segments_bs is None):
            raise UserError("segments: give both query_segments_bt and key_segments_bs, or neither")

    def dense(self, t: int, s: int) -> jax.Array:
        """The whole mask, True where attention is allowed: broadcastable to (b, 1, t, s)."""
        return self.dense_block(0, t, 0, s)

    def dense_block(self, t0: int, t1: int, s0: int, s1: int) -> jax.Array:
        """The part for queries t0..t1 and keys s0..s1: broadcastable to (b, 1, t1 - t0, s1 - s0)."""
        allowed = jnp.ones((1, t1 - t0, s1 - s0), bool)
        if self.causal:
            i_bt = (
                jnp.arange(t0, t1)[None] if self.query_indices_bt is None else self.query_indices_bt[:, t0:t1]
            )
            j_s = jnp.arange(s0, s1)
            allowed &= j_s <= i_bt[:, :, None]
            if self.window is not None:
                allowed &= j_s > i_bt[:, :, None] - self.window
        if self.query_segments_bt is not None and self.key_segments_bs is not None:
            allowed &= self.query_segments_bt[:, t0:t1, None] == self.key_segments_bs[:, None, s0:s1]
        if self.key_valid_bs is not None:
            allowed &= self.key_valid_bs[:, None, s0:s1]
        return allowed[:, None]
