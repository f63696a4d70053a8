"""The protocol between models and decoders: any model that can take one more token."""

from typing import Any, Protocol

import jax

Cache = Any
"""A pytree whose every leaf has the batch as its first axis, with per-row lengths inside."""


class Stepper(Protocol):
    """A model with its parameters, seen one token at a time. Both methods may be traced by jit."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens, of which v logits are given."""
        ...

    def prefill(self, tokens_bt: jax.Array, lengths_b: jax.Array, slots: int) -> tuple[jax.Array, Cache]:
        """Reads prompts, right-padded to a common length, and returns the float32 logits (b, v) of
        the token after each row's last one, and a cache with room for `slots` tokens a row."""
        ...

    def step(self, tokens_b: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Appends one token to each row: float32 logits (b, v) of the next one, and the new cache."""
        ...
