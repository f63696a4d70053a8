"""The encoder-decoder Transformer."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.config import Bound
from transformer.errors import UserError
from transformer.layers.attention.cache import Cache, KVCache
from transformer.layers.attention.masks import Mask
from transformer.layers.stack import Stack
from transformer.models.decoder import Decoder, DecoderConfig, StackStepper
from transformer.models.stack_builder import check_layers


@dataclass(frozen=True)
class EncoderDecoderConfig(DecoderConfig):
    """The config of an encoder-decoder."""

    # blocks of the encoder; 0: num_layers, those of the decoder
    num_encoder_layers: Annotated[int, Bound("from 0 to 10,000", 0, 10_000)] = 0
    share_embeddings: bool = True  # one embedding for source and target
    embedding_norm: bool = False  # normalise the sums of embeddings before the first blocks, as BART does

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(self, self.encoder_layers)
        if self.value_embeddings:
            setting = f"value_embeddings: {self.value_embeddings} with an encoder"
            raise UserError(f"{setting}; expected (): only a model that is a decoder alone can have them")

    @property
    def encoder_layers(self) -> int:
        """The number of encoder blocks."""
        return self.num_encoder_layers or self.num_layers

    @property
    def encoder_stack(self) -> Stack:
        """The encoder blocks."""
        return self.stack(self.encoder_layers)

    @property
    def decoder_stack(self) -> Stack:
        """The decoder blocks, with cross-attention."""
        return self.stack(cross=True, causal=True)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder stack and the decoder stack."""
        return self.encoder_stack, self.decoder_stack

    def build(self, vocab_size: int) -> nn.Module:
        """The model for a tokenizer of `vocab_size` tokens, the joint vocabulary."""
        return EncoderDecoder(self, self.entries(vocab_size))


class EncoderDecoder(Decoder):
    """p(y_t | y_<t, x) = softmax(Unembed(Decoder(y_<t, Encoder(x)))).

    Source positions attend to the whole source. Target positions attend to earlier target positions and, by
    cross-attention in each block, to the encoder's output. With `share_embeddings` and `tie_embeddings` one
    matrix embeds source and target and projects to the vocabulary (section 3.4).
    Source: Vaswani et al. 2017; Lewis et al. 2020 (BART), its released code, for `embedding_norm`.
    """

    config: EncoderDecoderConfig

    def setup(self) -> None:
        """The embeddings, the two stacks of blocks and the norms."""
        super().setup()
        c = self.config
        own = None if c.share_embeddings else c.embedding(self.vocab_size)
        self.source_embedding = own or self.embedding
        self.source_position = c.positions()
        if c.embedding_norm:
            self.embedding_norm, self.source_embedding_norm = c.normalization(), c.normalization()
        if c.norm_placement != "post":
            self.encoder_norm = c.normalization()
        x_btd = jnp.zeros((1, 1, c.d_model), c.dtype)
        self.encoder_blocks: Any = c.encoder_stack.declare(self, "encoder_blocks", x_btd)
        self.decoder_blocks: Any = c.decoder_stack.declare(self, "decoder_blocks", x_btd)

    def __call__(  # type: ignore[override]
        self, source_bs: jax.Array, tokens_bt: jax.Array, **inputs: Any
    ) -> jax.Array:
        """Float32 logits (b, t, v) of the next target tokens; `inputs` as for `hidden`."""
        return self.unembed(self.hidden(source_bs, tokens_bt, **inputs))

    def hidden(  # type: ignore[override]
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

        Segments separate the pairs of a packed row: a target attends to the source with its own segment
        number; positions count within each segment. Without segments of one side its row is one text without
        padding.
        """
        if segments_bt is None and source_segments_bs is not None:
            segments_bt = jnp.ones_like(tokens_bt)
        if source_segments_bs is None and segments_bt is not None:
            source_segments_bs = jnp.ones_like(source_bs)
        memory_bsd = self.encode(source_bs, source_segments_bs, source_positions_bs, train)
        mask = Mask.self_attention(segments_bt, positions_bt, causal=True)
        positions_bt = mask.positions(tokens_bt.shape)
        x_btd, _ = self.config.decoder_stack.run(
            self,
            "decoder",
            self.decoder_blocks,
            self.embed(tokens_bt, positions_bt, train),
            mask=mask,
            memory=memory_bsd,
            memory_mask=Mask(segments_bt, source_segments_bs),
            positions_bt=positions_bt,
            train=train,
        )
        return self.normalize(x_btd)

    def encode(
        self,
        source_bs: jax.Array,
        segments_bs: jax.Array | None = None,
        positions_bs: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """(b, s) tokens -> (b, s, d)."""
        c, mask = self.config, Mask.self_attention(segments_bs, positions_bs)
        positions_bs = mask.positions(source_bs.shape)
        x_bsd = self.source_position.embed(self.source_embedding(source_bs), positions_bs)
        x_bsd = self.source_embedding_norm(x_bsd) if c.embedding_norm else x_bsd
        x_bsd, _ = c.encoder_stack.run(
            self,
            "encoder",
            self.encoder_blocks,
            self.placed(self.embedding_dropout(x_bsd, deterministic=not train)),
            mask=mask,
            positions_bt=positions_bs,
            train=train,
        )
        return x_bsd if c.norm_placement == "post" else self.encoder_norm(x_bsd)

    def embed(self, tokens_bt: jax.Array, positions_bt: jax.Array, train: bool = False) -> jax.Array:
        """As `Decoder.embed`, normalised with `embedding_norm`."""
        x_btd = self.position.embed(self.embedding(tokens_bt), positions_bt)
        x_btd = self.embedding_norm(x_btd) if self.config.embedding_norm else x_btd
        return self.placed(self.embedding_dropout(x_btd, deterministic=not train))

    def attention_map(self, params: Any, source_bs: jax.Array, tokens_bt: jax.Array) -> jax.Array:
        """The cross-attention weights (h, t, s) of the last block for the first row."""
        _, sown = self.apply({"params": params}, source_bs, tokens_bt, mutable="intermediates")
        (weights_bhts,) = sown["intermediates"]["decoder"][0][-1]["cross_attention"]["weights"]
        return weights_bhts[0]

    def stepper(self, params: Any, bos_id: int, cache_type: str = "auto") -> "EncoderDecoderStepper":
        """The model behind the `Stepper` protocol; every target starts with `bos_id`. `cache_type`: see
        `StackStepper`; it holds the keys and values of sources too."""
        layers = self.config.decoder_stack.unstack(params["decoder_blocks"])
        return EncoderDecoderStepper(params, layers, self, bos_id, cache_type=cache_type)


@struct.dataclass
class EncoderDecoderCache:
    """The KV cache of a batch of targets, and the cached keys and values of their sources.

    Rows of the same source share its cache: with r rows per source, rows i r ... i r + r - 1.
    """

    targets: Cache
    memories: tuple[KVCache, ...]
    valid_ms: jax.Array


@struct.dataclass
class EncoderDecoderStepper(StackStepper):
    """An encoder-decoder behind the `Stepper` protocol, made by `EncoderDecoder.stepper`."""

    bos_id: int = struct.field(pytree_node=False)

    @property
    def stack(self) -> Stack:
        """The decoder's blocks."""
        return self.model.config.decoder_stack

    def prefill(
        self, source_bs: jax.Array, lengths_b: jax.Array, room: int, rewound: int = 0
    ) -> tuple[jax.Array, EncoderDecoderCache]:
        """Encodes right-padded sources; returns the logits of the first target tokens and the cache."""
        stack, batch = self.stack, source_bs.shape[0]
        valid_bs = jnp.arange(source_bs.shape[1]) < jnp.asarray(lengths_b)[:, None]
        memory_bsd = self.apply("encode", source_bs, valid_bs.astype(jnp.int32))
        memories = tuple(
            self.stored(
                stack.call(stack.block(i).apply, {"params": params}, memory_bsd, method="keys_values")
            )
            for i, params in enumerate(self.layers)
        )
        empty = tuple(self.stored(mixer.empty_cache(batch, 0)) for mixer in stack.mixers)
        none_b = jnp.zeros(batch, jnp.int32)
        targets = super().grow(Cache(empty, none_b, none_b, 0), room, rewound)
        start = jnp.full(batch, self.bos_id, jnp.int32)
        return self.step(start, EncoderDecoderCache(targets, memories, valid_bs))

    def step(self, tokens_b: jax.Array, cache: EncoderDecoderCache) -> tuple[jax.Array, EncoderDecoderCache]:
        """Appends one token to each row's target."""
        logits_b1v, cache = self.extend(tokens_b[:, None], cache)
        return logits_b1v[:, 0], cache

    def extend(
        self, tokens_bn: jax.Array, cache: EncoderDecoderCache
    ) -> tuple[jax.Array, EncoderDecoderCache]:
        """Appends n tokens to each row's target, in one pass."""
        # Kernels see a source as a cache: all its positions precede the target.
        places_m1 = jnp.full_like(cache.valid_ms[:, :1], cache.valid_ms.shape[1], jnp.int32)
        x_bnd, targets = self.read(
            tokens_bn,
            cache.targets,
            cache.targets.filled_b[0],
            memories=cache.memories,
            memory_mask=Mask(query_indices_bt=places_m1, key_valid_bs=cache.valid_ms),
        )
        return self.apply("logits", x_bnd), dataclasses.replace(cache, targets=targets)

    def grow(self, cache: EncoderDecoderCache, more: int, rewound: int = 0) -> EncoderDecoderCache:
        """Room for `more` further tokens of each target."""
        return dataclasses.replace(cache, targets=super().grow(cache.targets, more, rewound))

    def rewind(self, cache: EncoderDecoderCache, n: jax.Array | int) -> EncoderDecoderCache:
        """Removes the last n tokens of each target."""
        return dataclasses.replace(cache, targets=cache.targets.rewind(n))

    def repeat(self, cache: EncoderDecoderCache, n: int) -> EncoderDecoderCache:
        """n adjacent copies of each target, which share their source."""
        return dataclasses.replace(cache, targets=cache.targets.repeat(n))

    def reorder(self, cache: EncoderDecoderCache, rows_b: jax.Array) -> EncoderDecoderCache:
        """Reorders the targets; the sources stay in place."""
        return dataclasses.replace(cache, targets=cache.targets.take(rows_b))
