"""The recurrent encoder-decoder, with or without attention."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.config import Bound, OneOf, Positive, Rate
from transformer.errors import UserError
from transformer.layers.alignment import ALIGNMENTS, Remembered
from transformer.layers.embedding import Embedding, Part, Unembedding, whole
from transformer.layers.linear import Linear
from transformer.layers.recurrence import CELLS, CellState, RNNLayer, boundaries
from transformer.models.model_config import ModelConfig


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """The config of a recurrent encoder-decoder."""

    own: ClassVar = ("dropout", "dtype")
    harmless: ClassVar = ("vocab_multiple", "num_encoder_layers")

    d_model: Positive = 256  # width of embeddings and states; half for each direction of the encoder
    num_layers: Annotated[int, Bound("from 1 to 1,000", 1, 1000)] = 2  # layers of the decoder
    # layers of the encoder; 0: as many as num_layers
    num_encoder_layers: Annotated[int, Bound("from 0 to 1,000", 0, 1000)] = 0
    cell: Annotated[str, OneOf(CELLS)] = "gru"  # recurrent cell
    bidirectional: bool = True  # the encoder reads in both directions
    attention: Annotated[str, OneOf(ALIGNMENTS, "none")] = "additive"  # additive: v^T tanh(W s + U h)
    dropout: Rate = 0.0  # dropout rate of embeddings and of each layer's output
    tie_embeddings: bool = True  # one matrix for the target embedding and the output
    share_embeddings: bool = True  # one embedding for source and target
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the computation; parameters are float32
    vocab_multiple: Positive = 128  # pad the vocabulary to a multiple, for the hardware and the mesh

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and self.d_model % 2:
            raise UserError(f"d_model: {self.d_model} is odd; each direction of the encoder has half of it")

    @property
    def encoder_layers(self) -> int:
        """The number of encoder layers."""
        return self.num_encoder_layers or self.num_layers

    def build(self, vocab_size: int) -> "RecurrentEncoderDecoder":
        """The model with a joint vocabulary of `vocab_size` tokens."""
        return RecurrentEncoderDecoder(self, vocab_size)


@struct.dataclass
class EncodedSource:
    """Encoded sources, one per row: the arrays of the attention and the summaries."""

    remembered: Remembered
    valid_bs: jax.Array
    summary_b1d: jax.Array


class RecurrentEncoderDecoder(nn.Module):
    """h = RNN(x), s_t = RNN(y_t, s_{t-1}), out_t = tanh(W [context(s_t, h); s_t]), logits_t = Unembed(out_t).

    The summary of a source is the final state of the encoder's last layer (with `bidirectional` the
    concatenated final states of both directions). Each decoder layer is initialised with its own projection
    of the summary. Without attention, every step also reads the summary beside its token (Cho et al. 2014,
    section 2.2), and out_t is s_t itself.

    Attention queries with the state after y_t, and its result is not fed back into the recurrence (Luong et
    al. 2015, sections 3 and 3.1, without input feeding; Bahdanau et al. 2015 do feed it back). So in training
    all states are computed first, and attention is one batched product.

    Embeddings have unit variance (`scale` of `Embedding`). Dropout acts between layers, never on a state
    (Zaremba et al. 2014). Positions are ignored.
    Source: Sutskever et al. 2014; Bahdanau et al. 2015; Luong et al. 2015.
    """

    config: RecurrentConfig
    vocab_size: int

    def setup(self) -> None:
        """The layers of encoder and decoder, the projections of the summary, and the attention."""
        c = self.config
        table = self.vocab_size, c.d_model, c.vocab_multiple, True, c.dtype
        self.embedding = Embedding(*table)
        self.source_embedding = self.embedding if c.share_embeddings else Embedding(*table)
        width = c.d_model // 2 if c.bidirectional else c.d_model
        self.encoder = [RNNLayer(c.cell, width, False, c.dtype) for _ in range(c.encoder_layers)]
        if c.bidirectional:
            self.encoder_reverse = [RNNLayer(c.cell, width, True, c.dtype) for _ in range(c.encoder_layers)]
        self.bridge = Linear((c.num_layers, c.d_model), names=("embed", "depth", "state"), dtype=c.dtype)
        self.decoder = [RNNLayer(c.cell, c.d_model, False, c.dtype) for _ in range(c.num_layers)]
        if c.attention != "none":
            self.attention = ALIGNMENTS[c.attention](c.d_model, c.dtype)
            self.combine = Linear((c.d_model,), names=("embed", "state"), use_bias=False, dtype=c.dtype)
        if not c.tie_embeddings:
            self.unembedding = Unembedding(self.vocab_size, c.vocab_multiple, c.dtype)
        self.dropout = nn.Dropout(c.dropout)

    def __call__(self, source_bs: jax.Array, tokens_bt: jax.Array, **inputs: Any) -> jax.Array:
        """Float32 logits (b, t, v) of the next target tokens; `inputs` as for `hidden`."""
        return self.unembed(self.hidden(source_bs, tokens_bt, **inputs))

    def hidden(
        self,
        source_bs: jax.Array,
        tokens_bt: jax.Array,
        *,
        source_segments_bs: jax.Array | None = None,
        source_positions_bs: jax.Array | None = None,
        segments_bt: jax.Array | None = None,
        positions_bt: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Sources (b, s) and target prefixes (b, t) -> (b, t, d), the input of `unembed`.

        Segments separate the pairs of a packed row: a target reads the source with its own segment number; 0
        is padding. Without segments of one side its row is one text without padding.
        """
        segments_bt = jnp.ones_like(tokens_bt) if segments_bt is None else segments_bt
        if source_segments_bs is None:
            source_segments_bs = jnp.ones_like(source_bs)
        h_bsd = self.encode(source_bs, source_segments_bs, train)
        summary_btd = self.summarize(h_bsd, source_segments_bs, segments_bt)
        starts_bt, _, valid_bt = boundaries(segments_bt)
        x_btd = self.embed(tokens_bt, summary_btd, train)
        begin_btnd = self.bridge(summary_btd)
        for i, layer in enumerate(self.decoder):
            x_btd = self._drop(layer(x_btd, starts_bt, valid_bt, begin_btnd[:, :, i]), train)
        allowed_bts = valid_bt[:, :, None] & (segments_bt[:, :, None] == source_segments_bs[:, None])
        return self._drop(self.attend(x_btd, self.remember(h_bsd), allowed_bts), train)

    def encode(self, source_bs: jax.Array, segments_bs: jax.Array, train: bool = False) -> jax.Array:
        """(b, s) tokens -> (b, s, d), the states of the last layer, both directions concatenated."""
        starts_bs, ends_bs, valid_bs = boundaries(segments_bs)
        x_bsd = self._drop(self._placed(self.source_embedding(source_bs)), train)
        for i, layer in enumerate(self.encoder):
            h_bsd = layer(x_bsd, starts_bs, valid_bs)
            if self.config.bidirectional:
                h_bsd = jnp.concatenate([h_bsd, self.encoder_reverse[i](x_bsd, ends_bs, valid_bs)], axis=-1)
            x_bsd = self._drop(h_bsd, train)
        return x_bsd

    def summarize(self, h_bsd: jax.Array, segments_bs: jax.Array, segments_bt: jax.Array) -> jax.Array:
        """(b, t, d): for each target position the summary of the source with its segment number, or zeros."""
        starts_bs, ends_bs, _ = boundaries(segments_bs)
        same_bts = segments_bt[:, :, None] == segments_bs[:, None]

        def pick(h_bsd: jax.Array, where_bs: jax.Array) -> jax.Array:
            # A product with a one-hot matrix: its gradient is a product too, unlike a scatter deterministic.
            return jnp.einsum("bts,bsd->btd", (same_bts & where_bs[:, None]).astype(h_bsd.dtype), h_bsd)

        if not self.config.bidirectional:
            return pick(h_bsd, ends_bs)
        rightward_bsd, leftward_bsd = jnp.split(h_bsd, 2, axis=-1)
        return jnp.concatenate([pick(rightward_bsd, ends_bs), pick(leftward_bsd, starts_bs)], axis=-1)

    def embed(self, tokens_bt: jax.Array, summary_btd: jax.Array, train: bool = False) -> jax.Array:
        """The input of the decoder's first layer: (b, t, d), without attention (b, t, 2 d)."""
        x_btd = self._drop(self._placed(self.embedding(tokens_bt)), train)
        return jnp.concatenate([x_btd, summary_btd], axis=-1) if self.config.attention == "none" else x_btd

    def remember(self, h_bsd: jax.Array) -> Remembered:
        """The arrays that attention computes once per source; () without attention."""
        return () if self.config.attention == "none" else self.attention.remember(h_bsd)

    def attend(self, s_btd: jax.Array, remembered: Remembered, allowed_bts: jax.Array) -> jax.Array:
        """tanh(W [context; s]) (Luong et al. 2015, equation 5), or s without attention."""
        if self.config.attention == "none":
            return s_btd
        context_btd = self.attention(s_btd, remembered, allowed_bts)
        return jnp.tanh(self.combine(jnp.concatenate([context_btd, s_btd], axis=-1)))

    def unembed(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(b, t, d) -> float32 logits (b, t, v), with v padded to a multiple of `vocab_multiple`."""
        head = self.embedding.attend if self.config.tie_embeddings else self.unembedding
        logits_btv = head(x_btd, part)
        return nn.with_logical_constraint(logits_btv, ("batch", "length", "vocab"))

    def prefill(
        self, source_bs: jax.Array, lengths_b: jax.Array
    ) -> tuple[tuple[CellState, ...], EncodedSource]:
        """The decoder's initial states and the encoded sources, from right-padded sources."""
        valid_bs = jnp.arange(source_bs.shape[1]) < jnp.asarray(lengths_b)[:, None]
        segments_bs = valid_bs.astype(jnp.int32)
        h_bsd = self.encode(source_bs, segments_bs)
        summary_b1d = self.summarize(h_bsd, segments_bs, jnp.ones_like(segments_bs[:, :1]))
        begin_nbd = jnp.moveaxis(self.bridge(summary_b1d)[:, 0].astype(jnp.float32), 1, 0)
        states = tuple(CELLS[self.config.cell].begin(begin_bd) for begin_bd in begin_nbd)
        return states, EncodedSource(self.remember(h_bsd), valid_bs, summary_b1d)

    def extend(
        self, tokens_b: jax.Array, states: tuple[CellState, ...], memory: EncodedSource
    ) -> tuple[jax.Array, tuple[CellState, ...]]:
        """Appends one token per row: logits (b, v) and the new states. Adjacent rows of the same source query
        its memory like the time steps of one target."""
        rows = memory.summary_b1d.shape[0]
        tokens_bt = tokens_b.reshape(rows, -1)
        summary_btd = jnp.broadcast_to(memory.summary_b1d, (*tokens_bt.shape, self.config.d_model))
        x_btd = self.embed(tokens_bt, summary_btd)
        extended: tuple[CellState, ...] = ()
        for layer, state in zip(self.decoder, states, strict=True):
            state = jax.tree.map(lambda part: part.reshape(rows, -1, part.shape[-1]), state)
            extended += (layer.step(x_btd, state),)
            x_btd = extended[-1][0].astype(self.config.dtype)
        out_btd = self.attend(x_btd, memory.remembered, memory.valid_bs[:, None])
        return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), (self.unembed(out_btd), extended))

    def attention_map(self, params: Any, source_bs: jax.Array, tokens_bt: jax.Array) -> jax.Array | None:
        """The attention weights (1, t, s) for the first row; None without attention."""
        if self.config.attention == "none":
            return None
        _, sown = self.apply({"params": params}, source_bs, tokens_bt, mutable="intermediates")
        (weights_bhts,) = sown["intermediates"]["attention"]["weights"]
        return weights_bhts[0]

    def stepper(self, params: Any, bos_id: int, cache_type: str = "auto") -> "RecurrentStepper":
        """The model behind the `Stepper` protocol; every target starts with `bos_id`. It caches states alone,
        whose type is theirs."""
        return RecurrentStepper(params, self, bos_id)

    def _drop(self, x_btd: jax.Array, train: bool) -> jax.Array:
        return self.dropout(x_btd, deterministic=not train)

    def _placed(self, x_btd: jax.Array) -> jax.Array:
        return nn.with_logical_constraint(x_btd, ("batch", "length", "activation_embed"))


@struct.dataclass
class RecurrentCache:
    """The decoder's states of b rows for each layer, and their encoded sources.

    Rows of the same source share its memory: with r rows per source, rows i r ... i r + r - 1.
    """

    states: tuple[CellState, ...]
    memory: EncodedSource


@struct.dataclass
class RecurrentStepper:
    """A recurrent encoder-decoder and its parameters behind the `Stepper` protocol, made by
    `RecurrentEncoderDecoder.stepper`."""

    params: Any
    model: RecurrentEncoderDecoder = struct.field(pytree_node=False)
    bos_id: int = struct.field(pytree_node=False)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary without padding."""
        return self.model.vocab_size

    def prefill(
        self, source_bs: jax.Array, lengths_b: jax.Array, room: int
    ) -> tuple[jax.Array, RecurrentCache]:
        """Encodes right-padded sources; returns the logits of the first target tokens and the cache. `room`
        is ignored: states do not grow."""
        cache = RecurrentCache(*self._apply("prefill", source_bs, lengths_b))
        return self.step(jnp.full(source_bs.shape[0], self.bos_id, jnp.int32), cache)

    def step(self, tokens_b: jax.Array, cache: RecurrentCache) -> tuple[jax.Array, RecurrentCache]:
        """Appends one token to each row's target."""
        logits_bv, states = self._apply("extend", jnp.asarray(tokens_b), cache.states, cache.memory)
        return logits_bv[:, : self.vocab_size], RecurrentCache(states, cache.memory)

    def grow(self, cache: RecurrentCache, more: int) -> RecurrentCache:
        """The same cache: states do not grow."""
        return cache

    def repeat(self, cache: RecurrentCache, n: int) -> RecurrentCache:
        """n adjacent copies of each target, which share their source."""
        return RecurrentCache(
            jax.tree.map(lambda part: jnp.repeat(part, n, axis=0), cache.states), cache.memory
        )

    def reorder(self, cache: RecurrentCache, rows_b: jax.Array) -> RecurrentCache:
        """Reorders the targets; the sources stay in place."""
        return RecurrentCache(jax.tree.map(lambda part: part[rows_b], cache.states), cache.memory)

    def _apply(self, method: str, *inputs: Any) -> Any:
        return self.model.apply({"params": self.params}, *inputs, method=method)
