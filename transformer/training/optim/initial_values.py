"""Initial parameters from one distribution, instead of the initialisers of the layers."""

import zlib

import jax
import jax.numpy as jnp

from transformer.training.experiment import Params

DRAWN = ("kernel", "table")
"""Names of the random parameters; biases are 0 and scales of norms 1."""


def redraw(params: Params, rng: jax.Array, std: float) -> Params:
    """`params`, boxed or not, with every kernel and table drawn from `std` times a normal distribution
    truncated at 2, as in the released code of BERT (Devlin et al. 2019, `std` 0.02). The standard deviation
    is 0.88 `std`. LoRA parameters are unchanged."""

    def draw(path: tuple, leaf: jax.Array) -> jax.Array:
        names = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        if names[-1] not in DRAWN or any(name.startswith("lora") for name in names):
            return leaf
        own = jax.random.fold_in(rng, zlib.crc32("/".join(names).encode()))
        return std * jax.random.truncated_normal(own, -2.0, 2.0, leaf.shape, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, params)
