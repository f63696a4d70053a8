"""`Kernel`: an implementation of attention, and the inputs that it supports."""

import dataclasses
from collections.abc import Callable

import jax


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`attend(q, k, v, mask=, scoring=, dropout_rate=, dropout_rng=)` computes the same as `reference`.

    `serves(q, k, v, mask, scoring, dropout_rate)` says why it does not support these inputs, or ""; it may
    depend on the devices of the mesh.
    """

    attend: Callable[..., jax.Array]
    serves: Callable[..., str] = lambda *_: ""
