"""U-shaped skips: layers of the upper half of a stack also read the outputs of its lower half."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.block import Block
from transformer.layers.stack import SHARED, Stack


@dataclasses.dataclass(frozen=True)
class Skips:
    """A transform of a stack: layer n - 1 - i reads x + w y_i, with y_i the output of layer i < n / 2.

    w, the parameter `skip` of a layer, is initially 1; those of the lower half are not used.
    Source: Jordan et al. 2024, modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt), record of
    2024-11-10; after Bao et al. 2023 (U-ViT), section 3.1, who concatenate.
    """

    num_layers: int

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls `function`; of a block with the skip to it, and its output is handed on."""
        block = context.module
        if not isinstance(block, Block) or context.method_name != "__call__":
            return function(*args, **kwargs)
        x_btd, *rest = args
        weight = block.param("skip", nn.with_logical_partitioning(nn.initializers.ones, ()), (), jnp.float32)
        outputs = block.get_variable(SHARED, "outputs", ())
        mirrored = self.num_layers - 1 - len(outputs)
        if mirrored < self.num_layers // 2:
            x_btd = x_btd + weight.astype(x_btd.dtype) * outputs[mirrored]
        x_btd, cache = function(x_btd, *rest, **kwargs)
        block.put_variable(SHARED, "outputs", (*outputs, x_btd))
        return x_btd, cache


def with_skips(c: Any, stack: Stack) -> Stack:
    """The stack with U-shaped skips.

    Raises:
      UserError: the layers are to be scanned, which keeps no outputs of earlier layers.
    """
    if stack.scan:
        raise UserError("config.model.scan_layers: true with skips, which need false")
    return dataclasses.replace(stack, transforms=(*stack.transforms, Skips(stack.num_layers)))
