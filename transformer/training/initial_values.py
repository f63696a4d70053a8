"""Initial parameters of one distribution, whatever each layer would draw."""

import zlib

import jax
import jax.numpy as jnp

from transformer.training.experiment import Params

DRAWN = ("kernel", "table")
"""Names of the parameters that are drawn at random: biases are 0, and the scales of norms are 1."""


def redraw(params: Params, rng: jax.Array, std: float) -> Params:
    """`params`, boxed or not, with every kernel and table drawn anew: `std` times a normal variate that is
    drawn again where it is beyond 2, as in the code released with BERT (Devlin et al. 2019), whose `std` is
    0.02. Its standard deviation is 0.88 times `std`. Corrections of low rank stay as they are."""

    def draw(path: tuple, leaf: jax.Array) -> jax.Array:
        names = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        if names[-1] not in DRAWN or any(name.startswith("lora") for name in names):
            return leaf
        own = jax.random.fold_in(rng, zlib.crc32("/".join(names).encode()))
        return std * jax.random.truncated_normal(own, -2.0, 2.0, leaf.shape, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, params)
