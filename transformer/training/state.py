"""What training carries from step to step, and checkpoints keep."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

Params = Any
"""A tree of arrays: the `params` collection of a Linen model, unboxed."""


@struct.dataclass
class State:
    """One value: the step to take next, parameters, optimizer state, and counts.

    `ema` are the averaged parameters to evaluate with (an exponential moving average, or what the optimizer
    makes of them), or None where they are those that are trained; `skipped` counts
    the steps whose gradient was not finite; `carry` is what a model with memory remembers of the batch
    before, arrays whose leading axis is the batch's, or None. Everything random is a function of the seed and
    `step`.
    """

    step: jax.Array
    params: Params
    opt_state: Any
    ema: Params | None
    skipped: jax.Array
    carry: Any = None

    @classmethod
    def create(
        cls, params: Params, optimizer: optax.GradientTransformation, ema: bool, carry: Any = None
    ) -> "State":
        """The state before the first step."""
        step, skipped = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)  # two buffers: both are donated
        average = jax.tree.map(jnp.copy, params) if ema else None
        return cls(step, params, optimizer.init(params), average, skipped, carry)

    @property
    def eval_params(self) -> Params:
        """The parameters to evaluate and predict with: the average where there is one."""
        return self.params if self.ema is None else self.ema
