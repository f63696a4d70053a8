"""`Kernel`: an implementation of attention, and the inputs that it supports."""

import dataclasses
from collections.abc import Callable

import jax


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`attend(q, k, v, mask=, scoring=, dropout_rate=, dropout_rng=)` gives what `reference` gives.

    `serves(q, k, v, mask, scoring, dropout_rate)` says why it cannot serve; "" where it can, which then
    depends on the mesh's devices too.
    """

    attend: Callable[..., jax.Array]
    serves: Callable[..., str] = lambda *_: ""
