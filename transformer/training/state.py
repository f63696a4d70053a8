"""The training state."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

Params = Any
"""A tree of arrays: the `params` collection of a Linen model, unboxed."""


@struct.dataclass
class State:
    """The training state: the next step, parameters, optimizer state, and counts.

    `ema` are averaged parameters for evaluation (an exponential moving average, or the optimizer's own
    average), or None; `skipped` counts the steps with a non-finite gradient; `carry` is the memory of a model
    that continues from batch to batch, arrays with a leading batch axis, or None. Random numbers are
    functions of the seed and `step`.
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
        """The parameters for evaluation and prediction: the moving average if the run keeps one."""
        return self.params if self.ema is None else self.ema
