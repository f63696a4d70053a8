"""What a model's blocks look at while it reads."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from transformer.errors import UserError


def attention_weights(
    model: nn.Module, params: Any, read: Callable[[nn.Module], Any], layer: int = -1
) -> jax.Array:
    """The weights (b, h, t, s) of a block's self-attention while `read(model)` reads; layers count from 0, or
    back from -1. Kernels do not keep weights: they are the reference's.

    Raises:
      UserError: there is no such layer.
    """
    _, sown = model.apply({"params": params}, method=read, mutable="intermediates")
    (weights_nbhts,) = (
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(sown)
        if {"attention", "weights"} <= {getattr(entry, "key", None) for entry in path}
    )
    layers = weights_nbhts.shape[0]
    if not -layers <= layer < layers:
        raise UserError(f"layer: {layer}; the model has {layers}, counted from 0 (or back from -1)")
    return weights_nbhts[layer]
