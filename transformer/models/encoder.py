"""The Transformer encoder: bidirectional attention over a sequence; and the configs of encoders and heads."""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import OneOf, Positive
from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.embedding import Part, whole
from transformer.layers.feed_forward import ACTIVATIONS
from transformer.layers.linear import Linear
from transformer.models.decoder_config import StackConfig, TextConfig


@dataclass(frozen=True)
class EncoderConfig(TextConfig):
    """The config of a text encoder."""

    num_token_types: Positive = 2  # token type (segment) embeddings, for pairs of texts; 1: none
    token_type_bias: bool = False  # with one token type: a learned vector that all tokens get (RoBERTa)
    embedding_norm: bool = False  # normalise the sum of embeddings before the first block, as BERT does

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_type_bias and self.num_token_types > 1:
            raise UserError(f"token_type_bias: True with num_token_types {self.num_token_types}; expected 1")

    @property
    def has_types(self) -> bool:
        """Whether there are embeddings of token types."""
        return self.num_token_types > 1 or self.token_type_bias


@dataclass(frozen=True)
class HeadConfig(EncoderConfig):
    """The config of an encoder with BERT's head of masked language modelling, Norm(act(x W + b)) E + c."""

    head_activation: Annotated[str, OneOf(ACTIVATIONS)] = "gelu"  # of the hidden layer of the head
    head_bias: bool = True  # a bias in the hidden layer of the head

    def hidden_layer(self) -> tuple[Linear, nn.Module]:
        """The modules of `hidden`: W with b, and the norm."""
        linear = Linear((self.d_model,), ("embed", "mlp"), use_bias=self.head_bias, dtype=self.dtype)
        return linear, self.normalization()

    def hidden(self, linear: nn.Module, norm: nn.Module, x: jax.Array) -> jax.Array:
        """Norm(act(x W + b)), (..., d) -> (..., d)."""
        return norm(ACTIVATIONS[self.head_activation](linear(x)))


class Encoder(nn.Module):
    """Norm(Block_n(... Block_1(Dropout(Norm(x + positions))))); both norms depend on the config.

    Text and image encoders share it. Source: Vaswani et al. 2017; Devlin et al. 2019 for `embedding_norm`,
    the norm before the first block.
    """

    config: StackConfig
    embedding_norm: bool = False

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        segments_bt: jax.Array | None = None,
        positions_bt: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """(b, t, d) -> (b, t, d); vectors attend to each other within a segment (None: to all), and positions
        count in it (None: 0, 1, ...)."""
        c, mask = self.config, Mask.self_attention(segments_bt, positions_bt)
        positions_bt = mask.positions(x_btd.shape[:2])
        x_btd = c.positions(name="position").embed(x_btd, positions_bt)
        if self.embedding_norm:
            x_btd = c.normalization(name="embedding_norm")(x_btd)
        x_btd = nn.Dropout(c.embedding_dropout)(x_btd, deterministic=not train)
        x_btd = nn.with_logical_constraint(x_btd, ("batch", "length", "activation_embed"))
        stack = c.stack()
        params = stack.declare(self, "blocks", x_btd)
        inputs: Any = {"mask": mask, "positions_bt": positions_bt, "train": train}
        x_btd, _ = stack.run(self, "blocks", params, x_btd, **inputs)
        return x_btd if c.norm_placement == "post" else c.normalization(name="final_norm")(x_btd)


class TextEncoder(nn.Module):
    """Encoder(token + type + position), one vector for each token of the text.

    Types distinguish the two texts of a pair (Devlin et al. 2019, section 3); with `num_token_types` 1 there
    are none, or with `token_type_bias` all tokens have the same.
    """

    config: EncoderConfig
    vocab_size: int

    def setup(self) -> None:
        """The embeddings of tokens and types, and the blocks."""
        c = self.config
        self.embedding = c.embedding(self.vocab_size)
        if c.has_types:
            self.token_types = c.embedding(c.num_token_types, multiple=1, rows="types")
        self.trunk = Encoder(c, c.embedding_norm)

    def __call__(
        self,
        tokens_bt: jax.Array,
        *,
        segments_bt: jax.Array | None = None,
        positions_bt: jax.Array | None = None,
        types_bt: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """(b, t) tokens -> (b, t, d). Segments separate the texts of a packed row (None: one text without
        padding), positions count within each, and types are 0 or 1 (None: all 0)."""
        return self.trunk(self.embed(tokens_bt, types_bt), segments_bt, positions_bt, train)

    def embed(self, tokens_bt: jax.Array, types_bt: jax.Array | None = None) -> jax.Array:
        """The sum of the embeddings of tokens and types, (b, t) -> (b, t, d)."""
        x_btd = self.embedding(tokens_bt)
        if self.config.has_types:
            types_bt = None if self.config.token_type_bias else types_bt
            x_btd += self.token_types(jnp.zeros_like(tokens_bt) if types_bt is None else types_bt)
        return x_btd

    def attend(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(..., d) -> float32 logits (..., v), with the tied embedding."""
        return self.embedding.attend(x_btd, part)
