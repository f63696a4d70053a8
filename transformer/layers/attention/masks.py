"""`Mask` describes which keys a query may attend to; only the reference kernel materialises it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.errors import UserError
from transformer.layers.attention.patterns import Pattern


@struct.dataclass
class Mask:
    """An attention mask in a form that kernels can inspect without materialising it.

    A query at index i of its row may attend to the key at index j if all given conditions hold:

    - `causal`: j <= i;
    - `pattern`, one of `PATTERNS`, is True for i and j, or for their positions if it counts from the start of
      the text;
    - segments: `query_segments[i] == key_segments[j]` (packed documents do not attend to each other);
    - `key_valid[j]`: the key is not padding or an empty slot of a cache.

    The indices of the queries on the key axis are `start`, `start` + 1, ...; those that are known only at run
    time are `query_indices` (b, t). `key_indices` (b, s) are those of the keys (None: 0, 1, ...), which are
    in another order in a rolling cache. `query_positions` (b, t) and `key_positions` (b, s) count within each
    document (None: as the indices do); those of padding are arbitrary.

    A pattern that draws at random has `seeds` (d,), each for h / d adjacent heads; attention makes them from
    `layer`, the index of the layer.

    With `own_keys` queries and keys are those of one sequence, in the same places and segments, so that each
    query is allowed its own key, unless `key_valid` masks it.

    With `ancestors` (m, r, s) groups of r rows share their keys and values: at index j, row i of a group
    attends only to the key of row `ancestors[i, j]`; kernels apply it in addition to the dense mask.
    """

    query_segments_bt: jax.Array | None = None
    key_segments_bs: jax.Array | None = None
    key_valid_bs: jax.Array | None = None
    query_indices_bt: jax.Array | None = None
    key_indices_bs: jax.Array | None = None
    query_positions_bt: jax.Array | None = None
    key_positions_bs: jax.Array | None = None
    ancestors_mrs: jax.Array | None = None
    layer: jax.Array | int | None = None
    seeds_d: jax.Array | None = None
    heads_per_seed: int = struct.field(pytree_node=False, default=1)
    start: int = struct.field(pytree_node=False, default=0)
    causal: bool = struct.field(pytree_node=False, default=False)
    own_keys: bool = struct.field(pytree_node=False, default=False)
    pattern: Pattern | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self) -> None:
        if (self.query_segments_bt is None) != (self.key_segments_bs is None):
            raise UserError("segments: give both query_segments_bt and key_segments_bs, or neither")
        if (self.query_positions_bt is None) != (self.key_positions_bs is None):
            raise UserError("positions: give both query_positions_bt and key_positions_bs, or neither")

    @property
    def is_static(self) -> bool:
        """Whether the indices of queries and keys are known before the arrays are."""
        return self.query_indices_bt is None and self.key_indices_bs is None

    @property
    def counts_positions(self) -> bool:
        """Whether the pattern depends on positions that are not the indices."""
        absolute = self.pattern is not None and not self.pattern.relative
        return absolute and self.query_positions_bt is not None

    @classmethod
    def self_attention(
        cls, segments_bt: jax.Array | None, positions_bt: jax.Array | None, *, causal: bool = False
    ) -> "Mask":
        """The mask of a sequence that attends to itself; positions None: 0, 1, ... in each segment."""
        if positions_bt is None and segments_bt is not None:
            positions_bt = positions_in(segments_bt)
        places: Any = {"query_positions_bt": positions_bt, "key_positions_bs": positions_bt}
        return cls(segments_bt, segments_bt, **places, causal=causal, own_keys=True)

    def positions(self, shape: tuple[int, ...]) -> jax.Array:
        """The positions of the queries, by default their indices, in an array of `shape` (b, t)."""
        positions_bt = self.query_positions_bt
        return jnp.broadcast_to(jnp.arange(shape[1]), shape) if positions_bt is None else positions_bt

    def pick(self, indices_s: jax.Array) -> "Mask":
        """The mask for the keys at these indices only; indices below 0 are masked."""

        def of(x: jax.Array | None) -> jax.Array | None:
            return x if x is None or x.shape[-1] == 1 else x[..., jnp.maximum(indices_s, 0)]

        valid_bs, there_1s = of(self.key_valid_bs), indices_s[None] >= 0
        return dataclasses.replace(
            self,
            own_keys=False,
            key_segments_bs=of(self.key_segments_bs),
            key_valid_bs=there_1s if valid_bs is None else there_1s & valid_bs,
            key_positions_bs=of(self.key_positions_bs),
            ancestors_mrs=of(self.ancestors_mrs),
            key_indices_bs=indices_s[None],
        )

    def dense(self, t: int, s: int) -> jax.Array:
        """The materialised mask, True where attention is allowed, broadcastable to (b, 1, t, s); with seeds
        to (b, h, t, s)."""
        return self.block(0, t, 0, s)

    def block(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> jax.Array:
        """The part for t queries from t0 on and s keys from s0 on, broadcastable as `dense` is; with seeds s0
        may be one for each, (d,)."""
        if self.seeds_d is not None:
            return self._block_of_seeds(t0, t, s0, s)
        queries: Any = functools.partial(_cut, start=t0, size=t, axis=2)
        keys: Any = functools.partial(_cut, start=s0, size=s, axis=1)
        at: Any = self.query_indices_bt
        i = self.start + t0 + jnp.arange(t)[None, :, None] if at is None else queries(at)
        j = s0 + jnp.arange(s)[None, None] if self.key_indices_bs is None else keys(self.key_indices_bs)
        allowed = j <= i if self.causal else jnp.ones((1, t, s), bool)
        if self.pattern is not None:
            if self.counts_positions:
                i, j = queries(self.query_positions_bt), keys(self.key_positions_bs)
            allowed &= self.pattern(i, j)
        if self.query_segments_bt is not None:
            allowed &= queries(self.query_segments_bt) == keys(self.key_segments_bs)
        if self.key_valid_bs is not None:
            allowed &= keys(self.key_valid_bs)
        return allowed[:, None]

    def _block_of_seeds(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> jax.Array:
        def seeded(seed: jax.Array, s0: jax.Array | int) -> jax.Array:
            assert self.pattern is not None
            mask = dataclasses.replace(self, seeds_d=None, pattern=self.pattern.seeded(seed))
            return mask.block(t0, t, s0, s)[:, 0]

        block_of: Any = jax.vmap(seeded, (0, 0 if jnp.ndim(s0) else None), 1)
        allowed_bdts = block_of(self.seeds_d, s0)
        return jnp.repeat(allowed_bdts, self.heads_per_seed, axis=1)

    def pad(self, t: int, s: int, whole_t: int, whole_s: int) -> "Mask":
        """The mask for t queries and s keys padded to `whole_t` and `whole_s`; padding is masked."""
        added = whole_s - s
        valid_bs = jnp.ones((1, s), bool) if self.key_valid_bs is None and added else self.key_valid_bs
        return dataclasses.replace(
            self,
            query_segments_bt=_lengthened(self.query_segments_bt, whole_t - t),
            query_indices_bt=_lengthened(self.query_indices_bt, whole_t - t),
            query_positions_bt=_lengthened(self.query_positions_bt, whole_t - t),
            key_segments_bs=_lengthened(self.key_segments_bs, added),
            key_indices_bs=_lengthened(self.key_indices_bs, added),
            key_positions_bs=_lengthened(self.key_positions_bs, added),
            key_valid_bs=_lengthened(valid_bs, added),
        )


def positions_in(segments_bt: jax.Array) -> jax.Array:
    """0, 1, ... in each run of the same segment number."""
    index_t = jnp.arange(segments_bt.shape[1])
    differs = segments_bt[:, 1:] != segments_bt[:, :-1]
    begins_bt = jnp.where(jnp.pad(differs, ((0, 0), (1, 0))), index_t, 0)
    return index_t - jax.lax.cummax(begins_bt, axis=1)


def _cut(x_bt: Any, start: jax.Array | int, size: int, axis: int) -> jax.Array:
    """A part of each row, with a new `axis`; arrays of length 1 broadcast over the row."""
    part_bt = x_bt if x_bt.shape[1] == 1 else jax.lax.dynamic_slice_in_dim(x_bt, start, size, 1)
    return jnp.expand_dims(part_bt, axis)


def _lengthened(x_bt: jax.Array | None, by: int) -> jax.Array | None:
    return x_bt if x_bt is None or not by or x_bt.shape[1] == 1 else jnp.pad(x_bt, ((0, 0), (0, by)))
