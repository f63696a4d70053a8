"""LoRA: low-rank adapters of selected linear layers of the blocks."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.linear import Linear
from transformer.layers.stack import Stack


def check_adapters(config: Any) -> None:
    """Raises `UserError` if `lora_layers` of a `StackConfig` is not a regular expression."""
    try:
        re.compile(config.lora_layers)
    except re.error as error:
        key = f"lora_layers: {config.lora_layers!r}"
        raise UserError(f"{key} is not a regular expression: {error}") from None


def unmatched(config: Any) -> dict[str, str]:
    """`lora_rank`, with the reason why no layer of the model has adapters; {} if one has."""
    names = linears(dataclasses.replace(config, lora_rank=0))
    why = f"with lora_layers {config.lora_layers!r}, which is found in none of {', '.join(names)}"
    return {} if any(re.search(config.lora_layers, name) for name in names) else {"lora_rank": why}


def linears(config: Any) -> list[str]:
    """The paths of the linear layers in the blocks of the model: attention/query and so on."""
    names = set()

    def note(function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, Linear):
            names.add("/".join(context.module.path))
        return function(*args, **kwargs)

    x_btd = jax.ShapeDtypeStruct((1, 1, config.d_model), config.dtype)
    with nn.intercept_methods(note):
        for stack in config.stacks:
            jax.eval_shape(stack.init, jax.eval_shape(jax.random.key, 0), x_btd)
    return sorted(names)


@dataclass(frozen=True)
class Adapters:
    """A transform of a stack that adds (alpha / rank) x . down . up to the output of each `Linear` of a
    block whose path matches the regular expression `layers`; x is the input of the layer.

    `up` is initialised with zeros. The two kernels are a low-rank update of the layer's kernel. Their names
    are `lora_down` and `lora_up`, below that of the layer. No mesh axis divides their rank, which is small.
    Source: Hu et al. 2022 (LoRA), section 4.1.
    """

    rank: int
    alpha: float
    layers: str

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls `function`, a method of a module, and adds the output of its adapter."""
        y, module = function(*args, **kwargs), context.module
        if not isinstance(module, Linear) or context.method_name != "__call__":
            return y
        # The adapters themselves are linear layers too.
        if isinstance(module.parent, Linear) or not re.search(self.layers, "/".join(module.path)):
            return y
        inside, outside = module.names[: module.axis], module.names[module.axis :]
        linear = functools.partial(Linear, use_bias=False, dtype=module.dtype)
        down = linear((self.rank,), names=(*inside, "replicated"), axis=module.axis, name="lora_down")
        up = linear(module.features, names=("replicated", *outside), init_scale=0.0, name="lora_up")
        return y + up(down(*args, **kwargs)) * jnp.asarray(self.alpha / self.rank, y.dtype)


def with_adapters(c: Any, stack: Stack) -> Stack:
    """The stack with adapters in its blocks; see `Adapters`."""
    adapters = Adapters(c.lora_rank, c.lora_alpha, c.lora_layers)
    return dataclasses.replace(stack, transforms=(*stack.transforms, adapters))


def merged(params: Any, config: Any) -> Any:
    """The parameters of the same function without adapters: W + (alpha / rank) down . up in place of W.

    Source: Hu et al. 2022 (LoRA), section 4.1.
    """
    if not isinstance(params, Mapping):
        return params
    if "lora_down" not in params:
        return {name: merged(part, config) for name, part in params.items()}
    kernel_ndf, down_ndr, up_nrf = (
        params["kernel"],
        *(params[name]["kernel"] for name in ("lora_down", "lora_up")),
    )
    layers, rank = up_nrf.shape[:2]
    product_ndf = down_ndr.reshape(layers, -1, rank) @ up_nrf.reshape(layers, rank, -1)
    kernel_ndf = kernel_ndf + product_ndf.reshape(kernel_ndf.shape) * (config.lora_alpha / config.lora_rank)
    return {"kernel": kernel_ndf} | ({"bias": params["bias"]} if "bias" in params else {})
