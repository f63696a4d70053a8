"""Tokens that are never written, and the token with which each text begins."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.decoding.stepper import PyTree
from transformer.errors import UserError


@struct.dataclass
class SuppressedStepper:
    """A stepper with logits -inf of `tokens`: what is drawn follows p(token | not one of these)."""

    stepper: Any
    tokens: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def vocab_size(self) -> int:
        """As `Stepper.vocab_size`, the suppressed ones counted."""
        return self.stepper.vocab_size

    def prefill(self, *inputs: Any) -> tuple[jax.Array, PyTree]:
        """As `Stepper.prefill`."""
        return self._without(*self.stepper.prefill(*inputs))

    def step(self, tokens_b: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """As `Stepper.step`."""
        return self._without(*self.stepper.step(tokens_b, cache))

    def grow(self, cache: PyTree, more: int) -> PyTree:
        """As `Stepper.grow`."""
        return self.stepper.grow(cache, more)

    def repeat(self, cache: PyTree, n: int) -> PyTree:
        """As `Stepper.repeat`."""
        return self.stepper.repeat(cache, n)

    def reorder(self, cache: PyTree, rows_b: jax.Array) -> PyTree:
        """As `Stepper.reorder`."""
        return self.stepper.reorder(cache, rows_b)

    def _without(self, logits_bv: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        return logits_bv.at[:, jnp.array(self.tokens)].set(-jnp.inf), cache


@struct.dataclass
class FirstTokenStepper(SuppressedStepper):
    """A stepper of whose first logits all are -inf but those of `tokens`: with one token each text begins
    with it, and its log-probability is 0."""

    def step(self, tokens_b: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """As `Stepper.step`."""
        return self.stepper.step(tokens_b, cache)

    def _without(self, logits_bv: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
        chosen = jnp.array(self.tokens)
        return jnp.full_like(logits_bv, -jnp.inf).at[:, chosen].set(logits_bv[:, chosen]), cache


def with_first_token(stepper: Any, name: str, tokenizer: Any) -> Any:
    """The stepper whose texts begin with the token of this name; itself if it is "".

    Raises:
      UserError: the tokenizer does not have it.
    """
    if name and tokenizer.find(name) is None:
        raise UserError(f"generate.first: {name!r}; the tokenizer has no such token")
    return FirstTokenStepper(stepper, (tokenizer.find(name),)) if name else stepper


def suppressed(stepper: Any, names: Sequence[str], tokenizer: Any) -> Any:
    """The stepper without the tokens of these names; itself if there are none.

    Raises:
      UserError: the tokenizer does not have one of them.
    """
    ids = [tokenizer.find(name) for name in names]
    if None in ids:
        name = names[ids.index(None)]
        raise UserError(f"generate.suppress: {name!r}; the tokenizer has no such token")
    return SuppressedStepper(stepper, tuple(ids)) if ids else stepper
