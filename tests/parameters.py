"""Random parameters for tests, made without compilation; none of them is zero or one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn


def random_params(
    rng: np.random.Generator, module: nn.Module, *inputs: Any, scale: float = 0.5, **named: Any
) -> Any:
    """Parameters with the shapes of `module.init` for the inputs, normally distributed."""
    made = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs, **named))
    shapes = nn.meta.unbox(made)["params"]
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape, scale=scale), p.dtype), shapes)
