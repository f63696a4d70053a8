"""An encoder with a head for extractive question answering."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.models.classifier import ClassifierHead
from transformer.models.encoder import EncoderConfig, TextEncoder


class SpanClassifier(nn.Module):
    """p(start), p(end) = softmax over positions of TextEncoder(text) W + b, with W (d, 2).

    Source: Devlin et al. 2019 (BERT), section 4.2.
    """

    config: EncoderConfig
    vocab_size: int

    def setup(self) -> None:
        """The encoder and the head."""
        self.encoder = TextEncoder(self.config, self.vocab_size)
        self.head = ClassifierHead(2, dtype=self.config.dtype)

    def __call__(self, tokens_bt: jax.Array, *, train: bool = False, **inputs: Any) -> jax.Array:
        """(b, t) tokens -> float32 logits (b, t, 2) of start and end; `inputs` as for `TextEncoder`."""
        return self.head(self.encoder(tokens_bt, train=train, **inputs), train)


def place_log_probs(
    logits_bt2: jax.Array, segments_bt: jax.Array, choices_bt: jax.Array, k: int
) -> jax.Array:
    """(b, k, t, 2): log p(start) and log p(end) at each position, for each of the segments 1 ... k of a row;
    the softmax is over the segment's positions where `choices_bt` is True."""
    numbers_k1 = jnp.arange(1, k + 1)[:, None]
    possible_bkt = (segments_bt[:, None] == numbers_k1) & choices_bt[:, None]
    return jax.nn.log_softmax(jnp.where(possible_bkt[..., None], logits_bt2[:, None], -1e9), axis=2)
