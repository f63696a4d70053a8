"""Text classifiers, an encoder, pooling to one vector per text, and a projection to classes; and embedders,
whose result is the vector."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.conditions import Condition
from transformer.config import Nonnegative, OneOf, Rate
from transformer.layers.feed_forward import ACTIVATIONS
from transformer.layers.linear import Linear
from transformer.models.encoder import EncoderConfig, HeadConfig, TextEncoder


def first_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The first vector of each segment, at `[CLS]`."""
    starts_k = jnp.argmax(segments_t[None] == jnp.arange(1, k + 1)[:, None], axis=1)
    return x_td[starts_k]


def mean_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The mean of each segment's vectors, accumulated in float32."""
    belongs_kt = (segments_t[None] == jnp.arange(1, k + 1)[:, None]).astype(jnp.float32)
    counts_k1 = jnp.maximum(belongs_kt.sum(axis=1, keepdims=True), 1)
    return (belongs_kt @ x_td.astype(jnp.float32) / counts_k1).astype(x_td.dtype)


def max_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The elementwise maximum of each segment's vectors; 0 for a segment without tokens."""
    found_kd = jax.ops.segment_max(x_td, segments_t, num_segments=k + 1)[1:]
    return jnp.where(jnp.isfinite(found_kd), found_kd, 0)


def last_of(x_td: jax.Array, segments_t: jax.Array, k: int) -> jax.Array:
    """The last vector of each segment, which in a decoder has read all others."""
    is_of_kt = segments_t[None] == jnp.arange(1, k + 1)[:, None]
    return x_td[jnp.max(jnp.where(is_of_kt, jnp.arange(len(segments_t)), 0), axis=1)]


POOLINGS: dict[str, Callable[[jax.Array, jax.Array, int], jax.Array]] = {
    "mean": mean_of,
    "cls": first_of,
    "max": max_of,
    "last": last_of,
}
"""Name -> function (t, d), (t,) -> (k, d): one vector for each of the segments 1 ... k of a row; segment 0 is
padding."""


def pool(kind: str, x_btd: jax.Array, segments_bt: jax.Array, k: int) -> jax.Array:
    """(b, t, d) -> (b, k, d): pools each segment of each row by a function of `POOLINGS`."""
    return jax.vmap(lambda x_td, segments_t: POOLINGS[kind](x_td, segments_t, k))(x_btd, segments_bt)


of_masked_lm = Condition("hidden_kind", ("masked_lm",), refused=False)


@dataclass(frozen=True)
class ClassifierConfig(HeadConfig):
    """The config of a text classifier."""

    harmless: ClassVar = (*HeadConfig.harmless, "head_dropout")
    changing: ClassVar = (*HeadConfig.changing, "pooling", "pooler")

    pooling: Literal["mean", "cls", "max"] = "mean"  # pooling over tokens; cls: the first token
    # layer before the classes: BERT's pooler (tanh), DistilBERT's (relu), masked_lm's hidden one; auto: tanh
    # with pooling cls
    pooler: Literal["auto", "none", "tanh", "relu", "masked_lm"] = "auto"
    head_dropout: Rate = 0.0  # dropout rate before the classification head
    # activation and bias of masked_lm's hidden layer, which a run inherits with or without this layer
    head_activation: Annotated[str, OneOf(ACTIVATIONS), of_masked_lm] = "gelu"
    head_bias: Annotated[bool, of_masked_lm] = True

    @property
    def hidden_kind(self) -> str:
        """`pooler`, where it is "auto" what that stands for."""
        return self.pooler if self.pooler != "auto" else "tanh" if self.pooling == "cls" else "none"


class ClassifierHead(nn.Module):
    """Dropout(x) W + b: float32 logits over the classes."""

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
    """p(class | text) = softmax(Head(Pool(TextEncoder(text)))), for several texts per row.

    The layer that `pooler` adds after pooling can be a pre-trained one: BERT's pooler, tanh(x W + b), as in
    the released code of Devlin et al. 2019, that of Sanh et al. 2019 (DistilBERT), max(x W + b, 0), or the
    hidden layer of masked language modelling, as in that of Warner et al. 2024 (ModernBERT).
    """

    config: ClassifierConfig
    vocab_size: int
    num_classes: int

    def setup(self) -> None:
        """The encoder, the pooler and the head."""
        c = self.config
        self.encoder = TextEncoder(c, self.vocab_size)
        if c.hidden_kind in POOLERS:
            self.pooler = Pooler(c.dtype, POOLERS[c.hidden_kind])
        if c.hidden_kind == "masked_lm":
            self.transform, self.transform_norm = c.hidden_layer()
        self.head = ClassifierHead(self.num_classes, c.head_dropout, c.dtype)

    def __call__(
        self, tokens_bt: jax.Array, segments_bt: jax.Array, k: int, *, train: bool = False, **inputs: Any
    ) -> jax.Array:
        """(b, t) tokens -> float32 logits (b, k, c) of the segments 1 ... k of each row; `inputs` as for
        `TextEncoder`."""
        x_btd = self.encoder(tokens_bt, segments_bt=segments_bt, train=train, **inputs)
        x_bkd = pool(self.config.pooling, x_btd, segments_bt, k)
        if self.config.hidden_kind == "masked_lm":
            x_bkd = self.config.hidden(self.transform, self.transform_norm, x_bkd)
        return self.head(self.pooler(x_bkd) if self.config.hidden_kind in POOLERS else x_bkd, train)


class Pooler(nn.Module):
    """act(x W + b), by default with tanh: BERT's pooler of the vector at `[CLS]`."""

    dtype: str = "float32"
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh

    @nn.compact
    def __call__(self, x_bkd: jax.Array) -> jax.Array:
        """(b, k, d) -> (b, k, d)."""
        width = x_bkd.shape[-1]
        linear = Linear((width,), names=("embed", "mlp"), dtype=self.dtype, name="dense")
        return self.activation(linear(x_bkd))


POOLERS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
"""Value of `model.pooler` -> the activation of a `Pooler`."""


@dataclass(frozen=True)
class EmbedderConfig(EncoderConfig):
    """The config of an embedder of texts."""

    changing: ClassVar = (*EncoderConfig.changing, "pooling", "normalize")

    # pooling over tokens; cls: the first, last: [SEP]
    pooling: Literal["mean", "cls", "max", "last"] = "mean"
    normalize: bool = True  # vectors of length 1
    width: Nonnegative = 0  # width of the vectors, by a linear map of the pooled ones; 0: d_model, without


class TextEmbedder(nn.Module):
    """v / |v| with v = Pool(TextEncoder(text)), or v W with a `width`; without `normalize` v itself.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
    """

    config: EmbedderConfig
    vocab_size: int

    @nn.compact
    def __call__(self, tokens_bt: jax.Array, segments_bt: jax.Array, **inputs: Any) -> jax.Array:
        """(b, t) tokens -> float32 (b, d); segments are 1 in the text and 0 in padding, `inputs` as for
        `TextEncoder`."""
        c = self.config
        x_btd = TextEncoder(c, self.vocab_size, name="encoder")(tokens_bt, segments_bt=segments_bt, **inputs)
        x_bd = pool(c.pooling, x_btd, segments_bt, 1)[:, 0]
        if c.width:
            x_bd = Linear((c.width,), ("embed", None), use_bias=False, dtype=c.dtype, name="project")(x_bd)
        return unit(x_bd.astype(jnp.float32)) if c.normalize else x_bd.astype(jnp.float32)


def unit(x: jax.Array) -> jax.Array:
    """x / |x| over the last axis; zeros stay zeros."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-24))
