"""The protocol between models and decoders: any model that can take one more token."""

from typing import Any, Protocol

import jax

PyTree = Any
"""A pytree that holds what the rows of a batch have read so far, with per-row lengths inside."""


class Stepper(Protocol):
    """A model with its parameters, seen one token at a time. All methods may be traced by jit."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens, of which v logits are given."""
        ...

    def prefill(self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int) -> tuple[jax.Array, PyTree]:
        """Reads prompts (or sources to translate), right-padded to a common length, and returns the float32
        logits (b, v) of each row's first new token, and a cache with room for `room` new tokens a row."""
        ...

    def step(self, tokens_b: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """Appends one token to each row: float32 logits (b, v) of the next one, and the new cache."""
        ...

    def repeat(self, cache: PyTree, n: int) -> PyTree:
        """The cache of n copies of each row, side by side: row i's are rows i n ... i n + n - 1."""
        ...

    def reorder(self, cache: PyTree, rows_b: jax.Array) -> PyTree:
        """The cache whose row i is row `rows_b[i]` of this one, a copy of the same prompt as row i."""
        ...


class Extender(Stepper, Protocol):
    """A stepper that also reads several tokens at once, and forgets them again."""

    def prefill(
        self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int, rewound: int = 0
    ) -> tuple[jax.Array, PyTree]:
        """As `Stepper.prefill`, for a cache that may keep no more than it needs: `rewind` will take back the
        last `rewound` tokens at the most, and `extend` append one more than that at the most."""
        ...

    def extend(self, tokens_bn: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """Appends n tokens to each row: float32 logits (b, n, v) of each one's successor, and the cache."""
        ...

    def rewind(self, cache: PyTree, n: jax.Array | int) -> PyTree:
        """The cache without the last n tokens of each row."""
        ...
