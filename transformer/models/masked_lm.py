"""Encoders that predict masked tokens: with the heads of BERT, and without a head, of masked diffusion."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import Positive
from transformer.layers.embedding import Part, mask_padding, output_bias, whole
from transformer.models.classifier import ClassifierHead, Pooler, pool
from transformer.models.encoder import EncoderConfig, HeadConfig, TextEncoder


class MaskedLanguageModel(nn.Module):
    """p(masked token) = softmax(E Norm(act(x W + b)) + c) with E the token embedding, and
    p(second text follows the first) = softmax(tanh(x_[CLS] W + b) V + d).

    Source: Devlin et al. 2019 (BERT), section 3.1 and the released code.
    """

    config: HeadConfig
    vocab_size: int
    next_sentence: bool = True

    def setup(self) -> None:
        """The encoder, and the two heads."""
        c = self.config
        self.encoder = TextEncoder(c, self.vocab_size)
        self.transform, self.transform_norm = c.hidden_layer()
        self.output_bias = output_bias(self, self.vocab_size, c.vocab_multiple)
        if self.next_sentence:
            self.pooler = Pooler(c.dtype)
            self.next = ClassifierHead(2, dtype=c.dtype)

    def __call__(self, tokens_bt: jax.Array, places_bm: jax.Array, k: int = 1, **inputs: Any) -> tuple:
        """Float32 logits (b, m, v) of the tokens at `places_bm`, and next-sentence logits (b, k, 2) of the k
        pairs per row, or None; `inputs` as for `TextEncoder`."""
        x_btd = self.encode(tokens_bt, **inputs)
        segments_bt = inputs.get("segments_bt", jnp.ones_like(tokens_bt))
        follows = self.next_sentence_logits(x_btd, segments_bt, k) if self.next_sentence else None
        return self.unembed(self.masked_logits(x_btd, places_bm)), follows

    def encode(self, tokens_bt: jax.Array, **inputs: Any) -> jax.Array:
        """(b, t) tokens -> (b, t, d); `inputs` as for `TextEncoder`."""
        return self.encoder(tokens_bt, **inputs)

    def masked_logits(self, x_btd: jax.Array, places_bm: jax.Array) -> jax.Array:
        """(b, t, d), (b, m) -> (b, m, d), the input of `unembed`, only at the masked positions."""
        x_bmd = jnp.take_along_axis(x_btd, places_bm[..., None], axis=1)
        x_bmd = nn.with_logical_constraint(x_bmd, ("batch", "length", "activation_embed"))
        return self.config.hidden(self.transform, self.transform_norm, x_bmd)

    def unembed(self, x_bmd: jax.Array, part: Part = whole) -> jax.Array:
        """(b, m, d) -> float32 logits (b, m, v)."""
        logits_bmv = self.encoder.attend(x_bmd, part) + part(self.output_bias, 0)
        return mask_padding(logits_bmv, self.vocab_size)

    def next_sentence_logits(self, x_btd: jax.Array, segments_bt: jax.Array, k: int) -> jax.Array:
        """(b, t, d) -> float32 next-sentence logits (b, k, 2) of each pair of texts."""
        return self.next(self.pooler(pool("cls", x_btd, segments_bt, k)))


@dataclass(frozen=True)
class DenoiserConfig(EncoderConfig):
    """The config of a denoiser."""

    num_token_types: Positive = 1  # token type embeddings, which a text alone does not use; 1: none


class Denoiser(TextEncoder):
    """p(x_t | a text with masks) = softmax(TextEncoder(text)_t E^T), with the tied embedding E."""

    def unembed(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(..., d) -> float32 logits (..., v)."""
        return self.attend(x_btd, part)
