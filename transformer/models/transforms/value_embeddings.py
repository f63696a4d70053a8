"""Decoders with value embeddings."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.embedding import Embedding
from transformer.layers.variants.value_embeddings import places_of


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

    def of_layers(self, tokens_bt: jax.Array) -> list[jax.Array]:
        """(b, t) integers -> (b, t, g, k) for each layer."""
        ends = [*itertools.accumulate(g * k for g, k in self.shapes)][:-1]
        parts = zip(self.shapes, jnp.split(self(tokens_bt), ends, axis=-1), self.scale_l, strict=True)
        found = [
            (scale.astype(x_bte.dtype) * x_bte).reshape(*tokens_bt.shape, *shape)
            for shape, x_bte, scale in parts
        ]
        return [nn.with_logical_constraint(x, ("batch", "length", "kv_heads", "head_dim")) for x in found]


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
            c, shapes = self.config, tuple(self._shapes.values())
            width = sum(g * k for g, k in shapes)
            self.value_embedding = ValueEmbedding(
                self.vocab_size, width, c.vocab_multiple, dtype=c.dtype, shapes=shapes
            )

        def embed(self, tokens_bt: jax.Array, positions_bt: jax.Array, train: bool = False) -> Any:
            """See `Decoder.embed`; and {layer: (b, t, g, k)}, which is added to its values."""
            x_btd = super().embed(tokens_bt, positions_bt, train)
            return x_btd, dict(zip(self._shapes, self.value_embedding.of_layers(tokens_bt), strict=True))

        @property
        def _shapes(self) -> dict[int, tuple[int, int]]:
            """The chosen layers, with the number and the width of their values' heads."""
            stack = self.config.stack(causal=True)
            widths = [mixer.cache_widths for mixer in stack.mixers]
            return {i: (widths[i][0], widths[i][2]) for i in places_of(stack, self.config.value_embeddings)}

    return ValueDecoder
