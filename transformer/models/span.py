"""An encoder that points at the piece of a text which answers a question."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.models.classifier import ClassifierHead
from transformer.models.encoder import EncoderConfig, TextEncoder


class SpanPicker(nn.Module):
    """p(start), p(end) = softmax over places of TextEncoder(text) W + b, W (d, 2).

    Source: Devlin et al. 2019 (BERT), section 4.2.
    """

    config: EncoderConfig
    vocab_size: int

    def setup(self) -> None:
        """The encoder, and the two vectors that places are compared with."""
        self.encoder = TextEncoder(self.config, self.vocab_size)
        self.head = ClassifierHead(2, dtype=self.config.dtype)

    def __call__(self, tokens_bt: jax.Array, *, train: bool = False, **inputs: Any) -> jax.Array:
        """(b, t) tokens -> float32 logits (b, t, 2) of an answer's start and end; `inputs` as for
        `TextEncoder`."""
        return self.head(self.encoder(tokens_bt, train=train, **inputs), train)


def place_log_probs(
    logits_bt2: jax.Array, segments_bt: jax.Array, choices_bt: jax.Array, k: int
) -> jax.Array:
    """(b, k, t, 2): for each of a row's texts, the segments 1 ... k, log p of its answer's start, and of its
    end, at each place, by a softmax over those of its places that `choices_bt` allows."""
    numbers_k1 = jnp.arange(1, k + 1)[:, None]
    possible_bkt = (segments_bt[:, None] == numbers_k1) & choices_bt[:, None]
    return jax.nn.log_softmax(jnp.where(possible_bkt[..., None], logits_bt2[:, None], -1e9), axis=2)
