"""LoRA: low-rank adapters of selected linear layers of the blocks."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import Nonnegative
from transformer.errors import UserError
from transformer.layers.block import Block
from transformer.layers.linear import Linear
from transformer.layers.stack import Stack
from transformer.models.config.stack_config import StackConfig


@dataclass(frozen=True)
class LoraConfig(StackConfig):
    """The config of a stack of blocks with optional LoRA adapters."""

    own: ClassVar = (*StackConfig.own, "lora_rank", "lora_alpha", "lora_layers")

    lora_rank: Nonnegative = 0  # LoRA rank of the linear layers that lora_layers names; 0: no LoRA
    lora_alpha: float = 16.0  # the LoRA term is multiplied by lora_alpha / lora_rank
    # regular expression for the paths of a block's linear layers: attention/query, feed_forward/up
    lora_layers: str = "/(query|value)$"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.lora_layers)
        except re.error as error:
            raise UserError(
                f"lora_layers: {self.lora_layers!r} is not a regular expression: {error}"
            ) from None

    def stack(self, num_layers: int = 0, *, cross: bool = False, causal: bool = False) -> Stack:
        """See `StackConfig.stack`; with `lora_rank` the blocks have adapters."""
        stack = super().stack(num_layers, cross=cross, causal=causal)
        return adapted(stack, self.lora_rank, self.lora_alpha, self.lora_layers) if self.lora_rank else stack

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """All stacks of the model."""
        return (self.stack(),)

    @classmethod
    def inherited(cls, theirs: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
        """See `ModelConfig`: adapters are taken with their scale."""
        both = theirs.get("lora_rank") and here.get("lora_rank")
        return super().inherited(theirs, here) | ({"lora_alpha": theirs["lora_alpha"]} if both else {})

    def function(self) -> dict[str, Any]:
        """See `ModelConfig`."""
        return super().function() | ({"lora_alpha": self.lora_alpha} if self.lora_rank else {})

    def idle(self) -> dict[str, str]:
        """See `transformer.config.idle_keys`: and a rank of adapters that no layer has."""
        if not self.lora_rank:
            return super().idle() | dict.fromkeys(("lora_alpha", "lora_layers"), "with lora_rank 0")
        return super().idle() | self._unmatched()

    def _unmatched(self) -> dict[str, str]:
        names = dataclasses.replace(self, lora_rank=0).linears()
        why = f"with lora_layers {self.lora_layers!r}, which is found in none of {', '.join(names)}"
        found = any(re.search(self.lora_layers, name) for name in names)
        return {} if found else {"lora_rank": why}

    def linears(self) -> list[str]:
        """The paths of the linear layers in the blocks of the model: attention/query and so on."""
        found = set()

        def note(function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
            if isinstance(context.module, Linear):
                found.add("/".join(context.module.path))
            return function(*args, **kwargs)

        x_btd = jax.ShapeDtypeStruct((1, 1, self.d_model), self.dtype)
        with nn.intercept_methods(note):
            for stack in self.stacks:
                jax.eval_shape(stack.init, jax.eval_shape(jax.random.key, 0), x_btd)
        return sorted(found)


@dataclass(frozen=True)
class Adapters:
    """A flax method interceptor that adds (alpha / rank) x . down . up to the output of each `Linear` of a
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


class AdaptedBlock(Block):
    """A block whose linear layers have adapters, in all of its methods."""

    adapters: Adapters | None = None

    @nn.nowrap
    def init(self, *args: Any, **kwargs: Any) -> Any:
        """See `nn.Module`."""
        with nn.intercept_methods(self.adapters):
            return super().init(*args, **kwargs)

    @nn.nowrap
    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """See `nn.Module`."""
        with nn.intercept_methods(self.adapters):
            return super().apply(*args, **kwargs)


def adapted(stack: Stack, rank: int, alpha: float, layers: str) -> Stack:
    """The stack with adapters in its blocks; see `Adapters`."""

    def adapt(block: Block) -> Block:
        fields = {field.name: getattr(block, field.name) for field in dataclasses.fields(Block)}
        return AdaptedBlock(**fields, adapters=Adapters(rank, alpha, layers))

    return dataclasses.replace(stack, blocks=tuple(map(adapt, stack.blocks)))


def merged(params: Any, config: LoraConfig) -> Any:
    """The parameters of the same function without adapters: W + (alpha / rank) down . up in place of W.

    Source: Hu et al. 2022 (LoRA), section 4.1.
    """
    if not isinstance(params, Mapping):
        return params
    if "lora_down" not in params:
        return {name: merged(each, config) for name, each in params.items()}
    kernel_ndf, down_ndr, up_nrf = (
        params["kernel"],
        *(params[name]["kernel"] for name in ("lora_down", "lora_up")),
    )
    layers, rank = up_nrf.shape[:2]
    product_ndf = down_ndr.reshape(layers, -1, rank) @ up_nrf.reshape(layers, rank, -1)
    kernel_ndf = kernel_ndf + product_ndf.reshape(kernel_ndf.shape) * (config.lora_alpha / config.lora_rank)
    return {"kernel": kernel_ndf} | ({"bias": params["bias"]} if "bias" in params else {})
