"""The protocol between models and decoding algorithms."""

from typing import Any, Protocol

import jax

PyTree = Any
"""The cache of a batch: a pytree with per-row lengths inside."""


class Stepper(Protocol):
    """A model with its parameters that decodes token by token. All methods can be jitted."""

    @property
    def vocab_size(self) -> int:
        """The number v of logits."""
        ...

    def prefill(self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int) -> tuple[jax.Array, PyTree]:
        """Reads right-padded prompts, or sources to translate. Returns the float32 logits (b, v) of the first
        new token of each row, and a cache with room for `room` new tokens per row."""
        ...

    def step(self, tokens_b: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """Appends one token to each row: float32 logits (b, v) of the next one, and the new cache."""
        ...

    def grow(self, cache: PyTree, more: int) -> PyTree:
        """The cache with room for `more` further tokens per row."""
        ...

    def repeat(self, cache: PyTree, n: int) -> PyTree:
        """The cache with n adjacent copies of each row: those of row i are rows i n ... i n + n - 1."""
        ...

    def reorder(self, cache: PyTree, rows_b: jax.Array) -> PyTree:
        """The cache whose row i is row `rows_b[i]` of this one; both must have the same prompt."""
        ...


class Extender(Stepper, Protocol):
    """A stepper that can also append several tokens at once and remove them again."""

    def prefill(
        self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int, rewound: int = 0
    ) -> tuple[jax.Array, PyTree]:
        """As `Stepper.prefill`. The cache must support `rewind` by at most `rewound` tokens and `extend` by
        at most `rewound` + 1."""
        ...

    def grow(self, cache: PyTree, more: int, rewound: int = 0) -> PyTree:
        """As `Stepper.grow`, with the same `rewound` as in `prefill`."""
        ...

    def extend(self, tokens_bn: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """Appends n tokens to each row: float32 logits (b, n, v) of the token after each, and the cache."""
        ...

    def rewind(self, cache: PyTree, n: jax.Array | int) -> PyTree:
        """The cache without the last n tokens of each row."""
        ...
