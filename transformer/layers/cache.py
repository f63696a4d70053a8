"""The explicit cache of incremental decoding: keys and values, or the states of recurrent layers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.errors import UserError


@struct.dataclass
class KVCache:
    """Keys and values of one attention layer, in slots that the whole batch fills together.

    Head-major, so that a step's two products read each head's slots side by side. One that `wraps` is a
    rolling cache: of n slots, token j lies in slot j mod n, until token j + n overwrites it.
    """

    key_bgsk: jax.Array
    value_bgsk: jax.Array
    wraps: bool = struct.field(pytree_node=False, default=False)

    @classmethod
    def empty(cls, rows: int, slots: int, widths: tuple[int, int, int], dtype) -> "KVCache":
        """Nothing written yet, of heads, key width and value width `widths`."""
        heads, key, value = widths
        key_bgsk, value_bgsk = (jnp.zeros((rows, heads, slots, width), dtype) for width in (key, value))
        return cls(key_bgsk, value_bgsk)

    @property
    def slots(self) -> int:
        """How many tokens it has room for."""
        return self.key_bgsk.shape[2]

    def write(self, new: "KVCache", start: jax.Array | int) -> "KVCache":
        """The cache with the new keys and values in its slots from `start` on."""
        new, each = dataclasses.replace(new, wraps=self.wraps), start + jnp.arange(new.slots)

        def put(old_bgsk: jax.Array, new_bgsk: jax.Array) -> jax.Array:
            new_bgsk = new_bgsk.astype(old_bgsk.dtype)
            if self.wraps and new.slots > 1:
                return old_bgsk.at[:, :, each % self.slots].set(new_bgsk)
            first = start % self.slots if self.wraps else start
            return jax.lax.dynamic_update_slice_in_dim(old_bgsk, new_bgsk, first, axis=2)

        return jax.tree.map(put, self, new)

    def held_after(self, start: jax.Array | int, t: int, reach: int | None) -> jax.Array:
        """Which token each slot of a rolling cache holds, (s,), once t of them are written from `start` on;
        below 0: none yet.

        Raises:
          UserError: t are more at once than leave each of them the keys it reaches back to.
        """
        most = self.slots - (reach or self.slots) + 1
        if t > most:
            raise UserError(f"{t} tokens at once; a ring of {self.slots} slots takes {most} of this pattern")
        return _held(self.slots, start + t)

    def hold(self, slots: int, kept: int, filled: int) -> "KVCache":
        """The same with room for `slots`, or where `kept` are fewer a rolling cache of the last ones."""
        size = min(kept, slots)

        def fit(x_bgsk: jax.Array) -> jax.Array:
            if size < self.slots:
                return x_bgsk[:, :, _held(size, filled)]
            return jnp.pad(x_bgsk, ((0, 0), (0, 0), (0, size - self.slots), (0, 0)))

        return dataclasses.replace(jax.tree.map(fit, self), wraps=size < slots)


def _held(ring: int, filled: jax.Array | int) -> jax.Array:
    last = filled - 1
    return last - (last - jnp.arange(ring)) % ring


@struct.dataclass
class Cache:
    """What a batch of rows has read so far: a cache per layer, and which slots are whose.

    A layer's cache is a `KVCache`, or a state: any other pytree of arrays whose leading axis is the batch.

    Row i's token j lies in slot `offsets_b[i] + j`. Rows of different lengths start at different slots and
    end at the same one, so that a new token of every row is one write in place, in slot `filled_b[i]`,
    which is equal for all i. There are `slots`, of which a layer may keep the last in a ring.

    Of a prompt that `repeat` made r rows of, these change places without being moved: what the i-th of prompt
    m's has read in slot j lies in the `ancestors_mrs[m, i, j]`-th. Without that table each row has its own.
    """

    layers: tuple[Any, ...]
    offsets_b: jax.Array
    filled_b: jax.Array
    slots: int = struct.field(pytree_node=False)
    ancestors_mrs: jax.Array | None = None

    @property
    def lengths_b(self) -> jax.Array:
        """How many tokens each row holds."""
        return self.filled_b - self.offsets_b

    @property
    def positions_bs(self) -> jax.Array:
        """The position in its row that each slot stands for, below 0 before the row's first."""
        return jnp.arange(self.slots) - self.offsets_b[:, None]

    def grow(self, slots: int, reaches: Sequence[int | None], rewound: int = 0) -> "Cache":
        """A full cache with empty slots added, up to `slots`.

        Layer i, whose queries attend no further back than `reaches[i]` keys (None: all), keeps that many, and
        those that would be missing once the last `rewound` tokens are taken back. States do not grow.

        Raises:
          UserError: tokens are to be taken back from a state.
        """

        def grown(layer: Any, reach: int | None) -> Any:
            if isinstance(layer, KVCache):
                return layer.hold(slots, slots if reach is None else reach + rewound, self.slots)
            if rewound:
                raise UserError("no token can be taken back from the state of a recurrent layer")
            return layer

        layers = tuple(map(grown, self.layers, reaches))
        return dataclasses.replace(self, layers=layers, slots=slots)

    def own(self, start: jax.Array | int) -> "Cache":
        """The same with slots from `start` on, about to be written, each row's own in the table."""
        assert self.ancestors_mrs is not None
        _, r, s = self.ancestors_mrs.shape
        own_mrs = jnp.where(jnp.arange(s) < start, self.ancestors_mrs, jnp.arange(r)[:, None])
        return dataclasses.replace(self, ancestors_mrs=own_mrs)

    def rewind(self, n: jax.Array | int) -> "Cache":
        """The same without each row's last n tokens, whose slots the next ones overwrite."""
        return dataclasses.replace(self, filled_b=self.filled_b - n)

    def take(self, rows_b: jax.Array) -> "Cache":
        """The cache of other rows, which have the same prompts if `repeat` made them: beams change places."""
        if self.ancestors_mrs is None:
            return jax.tree.map(lambda leaf: leaf[rows_b], self)
        m, r, _ = self.ancestors_mrs.shape
        ancestors_mrs = jnp.take_along_axis(self.ancestors_mrs, rows_b.reshape(m, r, 1) % r, axis=1)
        # Keys and values stay where they are; states, which no table finds, are moved.
        layers = tuple(
            layer if isinstance(layer, KVCache) else jax.tree.map(lambda leaf: leaf[rows_b], layer)
            for layer in self.layers
        )
        return dataclasses.replace(self, layers=layers, ancestors_mrs=ancestors_mrs)

    def repeat(self, n: int) -> "Cache":
        """n copies of each row, side by side."""
        (b, s), old_mrs = self.positions_bs.shape, self.ancestors_mrs
        old_mrs = jnp.zeros((b, 1, s), jnp.int32) if old_mrs is None else old_mrs
        copies_r1 = jnp.tile(jnp.arange(n), old_mrs.shape[1])[:, None]
        ancestors_mrs = n * jnp.repeat(old_mrs, n, axis=1) + copies_r1
        rows = dataclasses.replace(self, ancestors_mrs=None)
        rows = jax.tree.map(lambda leaf: jnp.repeat(leaf, n, axis=0), rows)
        return dataclasses.replace(rows, ancestors_mrs=ancestors_mrs)
