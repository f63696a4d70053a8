"""The explicit cache of incremental decoding: keys and values, or states of recurrent layers."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from flax import struct

from transformer.errors import UserError
from transformer.layers.attention import rolling
from transformer.layers.quantized import Quantized


@struct.dataclass
class KVCache:
    """Keys and values of one attention layer, in slots that all rows of the batch fill in the same step.

    Head-major, so that the two products of a step read contiguous memory for each head. With `wraps` it is a
    rolling cache: of n slots, token j is in slot j mod n until token j + n overwrites it.

    Both may be `Quantized`, with a scale for each token and head; what is written is then quantised.
    """

    key_bgsk: Any
    value_bgsk: Any  # None: attention reads its values off the keys
    wraps: bool = struct.field(pytree_node=False, default=False)

    @classmethod
    def of(cls, k_bsgk: jax.Array, v_bsgk: jax.Array | None) -> "KVCache":
        """The cache of these keys and values."""
        return cls(k_bsgk.swapaxes(1, 2), None if v_bsgk is None else v_bsgk.swapaxes(1, 2))

    @classmethod
    def empty(cls, rows: int, slots: int, widths: tuple[int, int, int], dtype) -> "KVCache":
        """An empty cache; `widths` are the number of heads, key width and value width (0: None)."""
        heads, key, value = widths
        key_bgsk = jnp.zeros((rows, heads, slots, key), dtype)
        return cls(key_bgsk, jnp.zeros((rows, heads, slots, value), dtype) if value else None)

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.key_bgsk.shape[2]

    def quantized(self) -> "KVCache":
        """The cache in int8."""
        return jax.tree.map(lambda x_bgsk: Quantized.of(x_bgsk, "int8", -1), self)

    def read(self, dtype: jax.typing.DTypeLike) -> tuple[jax.Array, jax.Array | None]:
        """The keys and values, (b, s, g, k), of type `dtype`."""
        key_bgsk, value_bgsk = self.key_bgsk.astype(dtype), self.value_bgsk
        value_bsgk = None if value_bgsk is None else value_bgsk.astype(dtype).swapaxes(1, 2)
        return key_bgsk.swapaxes(1, 2), value_bsgk

    def write(self, new: "KVCache", start: jax.Array | int) -> "KVCache":
        """The cache with new keys and values in the slots from `start` on; from its end on it grows.

        Raises:
          UserError: it has another number of heads, or other widths.
        """
        new = new.quantized() if isinstance(self.key_bgsk, Quantized) else new
        new = dataclasses.replace(new, wraps=self.wraps)
        if self.wraps:
            return jax.tree.map(functools.partial(rolling.write, start=start), self, new)
        if isinstance(start, int) and start == self.slots:
            return jax.tree.map(lambda old, new: jnp.concatenate([old, new.astype(old.dtype)], 2), self, new)
        sizes, written = ([x.shape[1::2] for x in jax.tree.leaves(cache)] for cache in (self, new))
        put = jax.lax.dynamic_update_slice_in_dim if sizes == written else _refuse(sizes, written)
        return jax.tree.map(lambda old, new: put(old, new.astype(old.dtype), start, axis=2), self, new)

    def hold(self, slots: int, ring: int, filled: int) -> "KVCache":
        """The cache with `slots` slots, or if `ring` is smaller a rolling cache of the last `ring` tokens."""
        if ring < slots:
            fit = functools.partial(rolling.keep_last, ring=ring, filled=filled)
            return dataclasses.replace(jax.tree.map(fit, self), wraps=True)
        added = (0, 0), (0, 0), (0, slots - self.slots), (0, 0)
        return dataclasses.replace(jax.tree.map(lambda x: jnp.pad(x, added), self), wraps=False)


def _refuse(sizes: list[tuple[int, ...]], written: list[tuple[int, ...]]) -> NoReturn:
    raise UserError(
        f"KV cache: its keys and values have (heads, width) {sizes}, those of `keys_values` {written}; "
        "override `cache_widths` of this kind of attention: heads, width of keys, width of values"
    )


@struct.dataclass
class Cache:
    """The cache of a batch: one cache per layer, and the assignment of slots to tokens.

    A layer's cache is a `KVCache`, or a state: any other pytree of arrays with a leading batch axis.

    Token j of row i is in slot `offsets_b[i] + j`. Rows of different lengths start at different slots and end
    at the same one, so that the new tokens of all rows are one write in place, in slot `filled_b[i]`, equal
    for all i. There are `slots`, of which a layer may keep only the last ones in a rolling cache.

    If `repeat` made r rows of a prompt (beams), reordering them does not move keys: the token in slot j of
    the i-th row of prompt m is stored in its `ancestors_mrs[m, i, j]`-th row. Without that table each row has
    its own tokens.
    """

    layers: tuple[Any, ...]
    offsets_b: jax.Array
    filled_b: jax.Array
    slots: int = struct.field(pytree_node=False)
    ancestors_mrs: jax.Array | None = None

    @property
    def lengths_b(self) -> jax.Array:
        """The number of tokens in each row."""
        return self.filled_b - self.offsets_b

    @property
    def positions_bs(self) -> jax.Array:
        """The position of the token in each slot; below 0 before the first token of the row."""
        return jnp.arange(self.slots) - self.offsets_b[:, None]

    def grow(self, slots: int, reaches: Sequence[int | None], rewound: int = 0) -> "Cache":
        """A cache with empty slots added, up to `slots`.

        If the queries of layer i attend to at most the last `reaches[i]` keys (None: all), the layer keeps
        only these, and those needed after `rewind` by `rewound` tokens; if that is less than it has, the
        cache must be full. States do not grow.

        Raises:
          UserError: `rewound` is not 0 and there is a state.
        """

        def grown(layer: Any, reach: int | None) -> Any:
            if isinstance(layer, KVCache):
                return layer.hold(slots, slots if reach is None else reach + rewound, self.slots)
            if rewound:
                raise UserError("no token can be taken back from the state of a recurrent layer")
            return layer

        added, layers = ((0, 0), (0, 0), (0, slots - self.slots)), tuple(map(grown, self.layers, reaches))
        # What is added is set by `own` before it is read.
        ancestors_mrs = None if self.ancestors_mrs is None else jnp.pad(self.ancestors_mrs, added)
        return dataclasses.replace(self, layers=layers, slots=slots, ancestors_mrs=ancestors_mrs)

    def own(self, start: jax.Array | int) -> "Cache":
        """The cache for writing from slot `start` on: from there each row has its own tokens."""
        assert self.ancestors_mrs is not None
        _, r, s = self.ancestors_mrs.shape
        own_mrs = jnp.where(jnp.arange(s) < start, self.ancestors_mrs, jnp.arange(r)[:, None])
        return dataclasses.replace(self, ancestors_mrs=own_mrs)

    def rewind(self, n: jax.Array | int) -> "Cache":
        """The cache without the last n tokens of each row."""
        return dataclasses.replace(self, filled_b=self.filled_b - n)

    def take(self, rows_b: jax.Array) -> "Cache":
        """The cache of other rows; rows made by `repeat` must stay with their prompt (reordering of
        beams)."""
        if self.ancestors_mrs is None:
            return jax.tree.map(lambda leaf: leaf[rows_b], self)
        m, r, _ = self.ancestors_mrs.shape
        ancestors_mrs = jnp.take_along_axis(self.ancestors_mrs, rows_b.reshape(m, r, 1) % r, axis=1)
        # Keys and values stay in place, by the table; states are moved.
        layers = tuple(
            layer if isinstance(layer, KVCache) else jax.tree.map(lambda leaf: leaf[rows_b], layer)
            for layer in self.layers
        )
        return dataclasses.replace(self, layers=layers, ancestors_mrs=ancestors_mrs)

    def repeat(self, n: int) -> "Cache":
        """The cache with n adjacent copies of each row."""
        (b, s), old_mrs = self.positions_bs.shape, self.ancestors_mrs
        old_mrs = jnp.zeros((b, 1, s), jnp.int32) if old_mrs is None else old_mrs
        copies_r1 = jnp.tile(jnp.arange(n), old_mrs.shape[1])[:, None]
        ancestors_mrs = n * jnp.repeat(old_mrs, n, axis=1) + copies_r1
        rows = dataclasses.replace(self, ancestors_mrs=None)
        rows = jax.tree.map(lambda leaf: jnp.repeat(leaf, n, axis=0), rows)
        return dataclasses.replace(rows, ancestors_mrs=ancestors_mrs)
