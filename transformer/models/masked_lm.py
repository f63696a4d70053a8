"""Encoders that predict masked tokens: with the heads of BERT, and without a head, of masked diffusion."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import Positive
from transformer.layers.embedding import Part, mask_padding, output_bias, whole
from transformer.layers.feed_forward import ACTIVATIONS
from transformer.layers.linear import Linear
from transformer.models.classifier import ClassifierHead, Pooler, pool
from transformer.models.encoder import Encoder, EncoderConfig, HeadConfig, TextEncoder


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


def generator_config(config: HeadConfig, share: float) -> HeadConfig:
    """The config of a generator with a `share` of the width, heads and feed-forward of an encoder."""
    sizes: dict[str, Any] = {
        name: max(1, round(share * getattr(config, name))) for name in ("d_model", "num_heads", "d_ff")
    }
    return dataclasses.replace(config, num_kv_heads=0, head_dim=config.key_width, **sizes)


class ReplacedTokenModel(nn.Module):
    """A small generator, p_G(token) = softmax(E Norm(act(G(E[x] P) W + b)) + c) of a masked token of x, and a
    discriminator, D_t = sigmoid(act(H(y)_t U + u) . v + w), which tells whether token t of y was replaced.

    G and H are encoders, of which H is `encoder`; both embed tokens and types with the tables of H. Source:
    Clark et al. 2020 (ELECTRA), sections 2 and 3.2, and the released code.
    """

    config: HeadConfig
    vocab_size: int
    share: float

    def setup(self) -> None:
        """Both encoders, the projection of the embeddings to the generator's width, and the heads."""
        c, small = self.config, generator_config(self.config, self.share)
        self.encoder = TextEncoder(c, self.vocab_size)
        self.project = Linear((small.d_model,), ("embed", "mlp"), dtype=c.dtype)
        self.generator = Encoder(small, small.embedding_norm)
        self.transform, self.transform_norm = c.hidden_layer()
        self.output_bias = output_bias(self, self.vocab_size, c.vocab_multiple)
        self.detect_hidden = Linear((c.d_model,), ("embed", "mlp"), dtype=c.dtype)
        self.detect = Linear((1,), ("embed", None), dtype=c.dtype)

    def __call__(self, tokens_bt: jax.Array, places_bm: jax.Array, **inputs: Any) -> tuple:
        """Float32 logits of the generator (b, m, v) at `places_bm`, and of the discriminator (b, t) for the
        same tokens; `inputs` as for `TextEncoder`."""
        x_bmd = self.masked_logits(self.generate(tokens_bt, **inputs), places_bm)
        return self.unembed(x_bmd), self.replaced_logits(self.encode(tokens_bt, **inputs))

    def encode(self, tokens_bt: jax.Array, **inputs: Any) -> jax.Array:
        """The discriminator's states, (b, t) tokens -> (b, t, d); `inputs` as for `TextEncoder`."""
        return self.encoder(tokens_bt, **inputs)

    def generate(
        self,
        tokens_bt: jax.Array,
        segments_bt: jax.Array | None = None,
        positions_bt: jax.Array | None = None,
        types_bt: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """The generator's states, (b, t) tokens -> (b, t, d_G)."""
        x_btd = self.project(self.encoder.embed(tokens_bt, types_bt))
        return self.generator(x_btd, segments_bt, positions_bt, train)

    masked_logits = MaskedLanguageModel.masked_logits
    unembed = MaskedLanguageModel.unembed

    def replaced_logits(self, x_btd: jax.Array) -> jax.Array:
        """(b, t, d) -> float32 logits (b, t) of that each token was replaced."""
        hidden_btd = ACTIVATIONS[self.config.head_activation](self.detect_hidden(x_btd))
        return self.detect(hidden_btd)[..., 0].astype(jnp.float32)


@dataclass(frozen=True)
class DenoiserConfig(EncoderConfig):
    """The config of a denoiser."""

    num_token_types: Positive = 1  # token type embeddings, which a text alone does not use; 1: none


class Denoiser(TextEncoder):
    """p(x_t | a text with masks) = softmax(TextEncoder(text)_t E^T), with the tied embedding E."""

    def unembed(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(..., d) -> float32 logits (..., v)."""
        return self.attend(x_btd, part)
