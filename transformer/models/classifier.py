"""Classifiers: an encoder, one vector for each text, and a projection to classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import Rate
from transformer.layers.linear import Linear
from transformer.models.encoder import EncoderConfig, TextEncoder


def first_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The vector at the start of each segment, where `[CLS]` is."""
    starts_k = jnp.argmax(segments_t[None] == jnp.arange(1, k + 1)[:, None], axis=1)
    return x_td[starts_k]


def mean_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The mean of each segment's vectors, summed in float32."""
    belongs_kt = (segments_t[None] == jnp.arange(1, k + 1)[:, None]).astype(jnp.float32)
    counts_k1 = jnp.maximum(belongs_kt.sum(axis=1, keepdims=True), 1)
    return (belongs_kt @ x_td.astype(jnp.float32) / counts_k1).astype(x_td.dtype)


def max_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The maximum of each segment's vectors, axis by axis; 0 where there is no such segment."""
    found_kd = jax.ops.segment_max(x_td, segments_t, num_segments=k + 1)[1:]
    return jnp.where(jnp.isfinite(found_kd), found_kd, 0)


POOLINGS: dict[str, Callable[[jax.Array, jax.Array, int], jax.Array]] = {
    "mean": mean_of,
    "cls": first_of,
    "max": max_of,
}
"""One vector for each of the k segments of a row, numbered from 1: (t, d), (t,) -> (k, d). Segment 0 is
padding and belongs to none."""


def pool(kind: str, x_btd: jax.Array, segments_bt: jax.Array, k: int) -> jax.Array:
    """(b, t, d) -> (b, k, d): each segment of each row as one vector, by a key of `POOLINGS`."""
    return jax.vmap(lambda x_td, segments_t: POOLINGS[kind](x_td, segments_t, k))(x_btd, segments_bt)


@dataclass(frozen=True)
class ClassifierConfig(EncoderConfig):
    """The shape of a classifier of texts."""

    pooling: Literal["mean", "cls", "max"] = "mean"  # over tokens; cls: the first token
    head_dropout: Rate = 0.0  # dropout rate before the classification head


class ClassifierHead(nn.Module):
    """Dropout(x) W + b: a vector's logits over the classes, in float32."""

    num_classes: int
    dropout: float = 0.0
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x_bkd: jax.Array, train: bool = False) -> jax.Array:
        """(b, k, d) -> (b, k, c)."""
        x_bkd = nn.Dropout(self.dropout)(x_bkd, deterministic=not train)
        linear = Linear((self.num_classes,), names=("embed", "classes"), dtype=self.dtype, name="classes")
        return linear(x_bkd).astype(jnp.float32)


class TextClassifier(nn.Module):
    """p(class | text) = softmax(Head(Pool(TextEncoder(text)))), for several texts a row.

    The head has the pooler of BERT, tanh(x W), before the classes where `pooling` is "cls" (Devlin et al.
    2019, as released), so that a pre-trained one can go on.
    """

    config: ClassifierConfig
    vocab_size: int
    num_classes: int

    def setup(self) -> None:
        """The encoder, and what makes classes of its output."""
        c = self.config
        self.encoder = TextEncoder(c, self.vocab_size)
        if c.pooling == "cls":
            self.pooler = Pooler(c.dtype)
        self.head = ClassifierHead(self.num_classes, c.head_dropout, c.dtype)

    def __call__(
        self, tokens_bt: jax.Array, segments_bt: jax.Array, k: int, *, train: bool = False, **inputs: Any
    ) -> jax.Array:
        """(b, t) tokens -> float32 logits (b, k, c) of the row's texts, the segments 1 ... k; `inputs` as
        for `TextEncoder`."""
        x_btd = self.encoder(tokens_bt, segments_bt=segments_bt, train=train, **inputs)
        x_bkd = pool(self.config.pooling, x_btd, segments_bt, k)
        return self.head(self.pooler(x_bkd) if self.config.pooling == "cls" else x_bkd, train)


class Pooler(nn.Module):
    """tanh(x W + b), what BERT makes of the vector at `[CLS]`."""

    dtype: str = "float32"

    @nn.compact
    def __call__(self, x_bkd: jax.Array) -> jax.Array:
        """(b, k, d) -> (b, k, d)."""
        width = x_bkd.shape[-1]
        return jnp.tanh(Linear((width,), names=("embed", "mlp"), dtype=self.dtype, name="dense")(x_bkd))
