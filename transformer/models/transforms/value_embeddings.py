"""Value embeddings: chosen layers add a learned embedding of each token to the values of their attention."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.block import Block
from transformer.layers.embedding import Embedding
from transformer.layers.mixers import MultiHeadAttention
from transformer.layers.stack import SHARED, Stack

VALUES = "values"
"""The variable of `SHARED` with what each of the chosen layers adds, a tuple of arrays (b, t, g, k)."""


class ValueEmbedding(Embedding, kw_only=True):  # type: ignore[call-arg]
    """lambda_l E_l[token] of each layer l: the tables E_l of all layers are one, their columns side by side.

    The table is initialised as that of any `Embedding`; `scale` has the lambda_l, initially 1. `shapes` are
    the number g and the width k of the heads in each layer.
    """

    shapes: tuple[tuple[int, int], ...]

    def setup(self) -> None:
        """Two parameters: `table` and `scale`."""
        super().setup()
        ones = nn.with_logical_partitioning(nn.initializers.ones, (None,))
        self.scale_l = self.param("scale", ones, (len(self.shapes),), jnp.float32)

    def of_layers(self, tokens_bt: jax.Array) -> tuple[jax.Array, ...]:
        """(b, t) integers -> (b, t, g, k) for each layer."""
        ends = [*itertools.accumulate(g * k for g, k in self.shapes)][:-1]
        parts = zip(self.shapes, jnp.split(self(tokens_bt), ends, axis=-1), self.scale_l, strict=True)
        values = [
            (scale.astype(x_bte.dtype) * x_bte).reshape(*tokens_bt.shape, *shape)
            for shape, x_bte, scale in parts
        ]
        axes = "batch", "length", "kv_heads", "head_dim"
        return tuple(nn.with_logical_constraint(value_btgk, axes) for value_btgk in values)


@functools.cache
def with_value_embeddings(decoder: Any) -> Any:
    """The kind of decoder in which the values of each layer l of `value_embeddings` are W x_t + lambda_l
    E_l[token_t], so that deep layers can attend to the tokens themselves.

    Source: Jordan et al. 2024, modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt), record of
    2024-12-04, after Zhou et al. 2024 ("Value residual learning"), who add the values of the first layer.
    """

    class ValueDecoder(decoder):
        def setup(self) -> None:
            super().setup()
            c = self.config
            stack = c.stack(causal=True)
            widths = [mixer.cache_widths for mixer in stack.mixers]
            shapes = tuple((widths[i][0], widths[i][2]) for i in places_of(stack, c.value_embeddings))
            sizes = self.vocab_size, sum(g * k for g, k in shapes), c.vocab_multiple
            self.value_embedding = ValueEmbedding(*sizes, dtype=c.dtype, shapes=shapes)

        def embed(self, tokens_bt: jax.Array, positions_bt: jax.Array, train: bool = False) -> Any:
            """See `Decoder.embed`; and the variables that layers get."""
            x_btd = super().embed(tokens_bt, positions_bt, train)
            return x_btd, {VALUES: self.value_embedding.of_layers(tokens_bt)}

    return ValueDecoder


@dataclasses.dataclass(frozen=True)
class AddedValues:
    """A transform of a stack: in each of the layers `places` the values of the attention are W x + `VALUES`,
    and so are those in its cache."""

    places: tuple[int, ...]

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls `function`; of a block with multi-head attention, with what is added to its values."""
        block = context.module
        if not isinstance(block, Block) or context.method_name != "__call__":
            return function(*args, **kwargs)
        if type(block.mixer) is not MultiHeadAttention:
            return function(*args, **kwargs)
        values, layer = block.get_variable(SHARED, VALUES, ()), kwargs["mask"].layer

        def add(function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
            value_btgk = function(*args, **kwargs)
            if context.module.path == ("attention", "value") and context.method_name == "__call__":
                for place, added_btgk in zip(self.places, values, strict=False):  # none in initialisation
                    if added_btgk.shape == value_btgk.shape:
                        value_btgk += jnp.where(layer == place, added_btgk, 0)
            return value_btgk

        with nn.intercept_methods(add):
            return function(*args, **kwargs)


def with_values(c: Any, stack: Stack) -> Stack:
    """The stack, whose layers `value_embeddings` of the config take values to add.

    Raises:
      UserError: there is no such layer, or it has another mixer than multi-head attention.
    """
    chosen = c.value_embeddings
    key, places = f"config.model.value_embeddings: {tuple(chosen)}", places_of(stack, chosen)
    if len({*places}) < len(places) or not all(0 <= i < stack.num_layers for i in places):
        raise UserError(f"{key}; expected different layers of 0 to {stack.num_layers - 1}, -1 for the last")
    if bad := [i for i in places if type(stack.block(i).mixer) is not MultiHeadAttention]:
        raise UserError(f"{key}: the mixer of layer {bad[0]} is not 'multi_head', which alone can have them")
    return dataclasses.replace(stack, transforms=(*stack.transforms, AddedValues(places)))


def places_of(stack: Stack, chosen: Sequence[int]) -> tuple[int, ...]:
    """The chosen layers, counted from the first."""
    return tuple(i + stack.num_layers if i < 0 else i for i in chosen)
