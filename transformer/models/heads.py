"""The hidden layer of the heads of encoders, and its config keys."""

from dataclasses import dataclass
from typing import Annotated

import jax
from flax import linen as nn

from transformer.config import OneOf
from transformer.layers.feed_forward import ACTIVATIONS
from transformer.layers.linear import Linear
from transformer.models.encoder import EncoderConfig


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
