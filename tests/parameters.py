"""Random parameters for tests, made without compilation; none of them is zero or one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer.training.optim.roles import Role, joined, role


def random_params(
    rng: np.random.Generator, module: nn.Module, *inputs: Any, scale: float = 0.5, **named: Any
) -> Any:
    """Parameters with the shapes of `module.init` for the inputs, normally distributed."""
    made = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs, **named))
    shapes = nn.meta.unbox(made)["params"]
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape, scale=scale), p.dtype), shapes)


def roles_by_name(path: tuple) -> Role:
    """The roles of the parameters of a tree without names of axes, by the names that models here have."""
    keys = ("", *joined(path).split("/"))
    batches = ("layers",) * any(key.endswith("blocks") for key in keys) + ("expert",) * ("experts" in keys)
    if keys[-1] == "table":
        return role((*batches, "vocab", "embed"))
    if keys[-1] != "kernel":
        return role((*batches, "embed"))
    if keys[-2] == "output":
        return role((*batches, "heads", "head_dim", "embed"))
    return role((*batches, "embed", *(("heads", "head_dim") if keys[-2] == "query" else ("mlp",))))
