"""The decoder-only Transformer, for training and for decoding with a KV cache."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.layers.attention.cache import Cache, KVCache
from transformer.layers.attention.masks import Mask
from transformer.layers.embedding import Part, Unembedding, mask_padding, output_bias, whole
from transformer.layers.stack import Stack
from transformer.models.decoder_config import DecoderKeys


@dataclass(frozen=True)
class DecoderConfig(DecoderKeys):
    """The config of a decoder."""

    def build(self, vocab_size: int) -> nn.Module:
        """The model for a tokenizer of `vocab_size` tokens."""
        make = self.with_values(Decoder) if self.value_embeddings else Decoder
        return make(self, self.entries(vocab_size))

    def with_values(self, decoder: type) -> type:
        """The kind of decoder with value embeddings."""
        from transformer.models.transforms.value_embeddings import with_value_embeddings

        return with_value_embeddings(decoder)


class Decoder(nn.Module):
    """p(x_t | x_<t) = softmax(Unembed(Norm(Block_n(... Block_1(Embed(x_<t)))))).

    Source: Vaswani et al. 2017 (the decoder without its encoder; Liu et al. 2018, Radford et al. 2018).
    """

    config: DecoderConfig
    vocab_size: int

    def setup(self) -> None:
        """Embedding, norm and output; `hidden` makes the stacked parameters of the blocks."""
        c = self.config
        output: Any = {"soft_cap": c.logit_soft_cap, "logits_dtype": c.logits_dtype}
        self.embedding = c.embedding(self.vocab_size, **output)
        self.position = c.positions()
        self.embedding_dropout = nn.Dropout(c.embedding_dropout)
        if c.norm_placement != "post":
            self.final_norm = c.normalization()
        if not c.tie_embeddings:
            self.unembedding = Unembedding(self.vocab_size, c.vocab_multiple, c.dtype, **output)
        if c.output_bias:
            self.output_bias = output_bias(self, self.vocab_size, c.vocab_multiple)

    def __call__(self, tokens_bt: jax.Array, **inputs: Any) -> jax.Array:
        """(b, t) tokens -> float32 logits (b, t, v) of the next tokens; `inputs` as for `hidden`."""
        return self.unembed(self.hidden(tokens_bt, **inputs))

    @nn.compact
    def hidden(
        self,
        tokens_bt: jax.Array,
        *,
        segments_bt: jax.Array | None = None,
        positions_bt: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """(b, t) tokens -> (b, t, d), the input of `unembed`.

        `segments_bt` separates packed documents, `positions_bt` counts within them (None: 0, 1, ... in
        each).
        """
        mask = Mask.self_attention(segments_bt, positions_bt, causal=True)
        positions_bt = mask.positions(tokens_bt.shape)
        x_btd, stack = self.embed(tokens_bt, positions_bt, train), self.config.stack(causal=True)
        params = stack.declare(self, "blocks", x_btd)
        x_btd, _ = stack.run(self, "blocks", params, x_btd, mask=mask, positions_bt=positions_bt, train=train)
        return self.normalize(x_btd)

    def embed(self, tokens_bt: jax.Array, positions_bt: jax.Array, train: bool = False) -> jax.Array:
        """(b, t) tokens -> (b, t, d): embeddings plus positions, after dropout."""
        x_btd = self.position.embed(self.embedding(tokens_bt), positions_bt)
        return self.placed(self.embedding_dropout(x_btd, deterministic=not train))

    def placed(self, x_btd: jax.Array) -> jax.Array:
        """(b, t, d), divided over devices as the input of the blocks and of the unembedding."""
        return nn.with_logical_constraint(x_btd, ("batch", "length", "activation_embed"))

    def normalize(self, x_btd: jax.Array) -> jax.Array:
        """The final normalisation; the identity with post-norm."""
        return x_btd if self.config.norm_placement == "post" else self.final_norm(x_btd)

    def unembed(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(b, t, d) -> float32 logits (b, t, v), with v padded to a multiple of `vocab_multiple`."""
        c = self.config
        x_btd = self.placed(x_btd * jnp.asarray(c.d_model**-0.5, x_btd.dtype) if c.scale_logits else x_btd)
        logits_btv = (self.embedding.attend if c.tie_embeddings else self.unembedding)(x_btd, part)
        if c.output_bias:
            logits_btv = mask_padding(logits_btv + part(self.output_bias, 0), self.vocab_size)
        return nn.with_logical_constraint(logits_btv, ("batch", "length", "vocab"))

    def logits(self, x_btd: jax.Array) -> jax.Array:
        """Outputs of the last block (b, t, d) -> float32 logits (b, t, v) without vocabulary padding."""
        return self.unembed(self.normalize(x_btd))[..., : self.vocab_size]


@struct.dataclass
class StackStepper:
    """Base class of the steppers of models with a KV cache (see `transformer.decoding.stepper`).

    `layers` are the parameters of the decoder's blocks unstacked, one tree per block, so that the decoding
    loop need not slice them in every step; `params` has all others. With `cache_type` "int8" keys and values
    are cached in int8.
    """

    params: Any
    layers: list[Any]
    model: Any = struct.field(pytree_node=False)
    cache_type: str = struct.field(pytree_node=False, default="auto", kw_only=True)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary without padding."""
        return self.model.vocab_size

    @property
    def stack(self) -> Stack:
        """The stack of the decoder."""
        return self.model.config.stack(causal=True)

    def stored(self, cache: Any) -> Any:
        """A layer's cache in the type that it is kept in; states stay as they are."""
        return cache.quantized() if self.cache_type == "int8" and isinstance(cache, KVCache) else cache

    def grow(self, cache: Any, more: int, rewound: int = 0) -> Any:
        """The cache with room for `more` further tokens per row."""
        return cache.grow(cache.slots + more, [mixer.reach for mixer in self.stack.mixers], rewound)

    def read(
        self, tokens_bt: jax.Array, cache: Cache, start: jax.Array | int, **inputs: Any
    ) -> tuple[jax.Array, Cache]:
        """Appends tokens to a cache, in the slots from `start` on: (b, t) -> (b, t, d), before the final
        normalisation, and the new cache; `inputs` as for `Stack.extend`."""
        if cache.ancestors_mrs is not None:
            cache = cache.own(start)
        slots_t, key_positions_bs = start + jnp.arange(tokens_bt.shape[1]), cache.positions_bs
        positions_bt = jnp.maximum(slots_t - cache.offsets_b[:, None], 0)
        # With indices known before the program runs, the kernels of training can be used.
        indices_bt = jnp.broadcast_to(slots_t, positions_bt.shape)
        indices: Any = {"start": start} if isinstance(start, int) else {"query_indices_bt": indices_bt}
        mask = Mask(
            key_valid_bs=key_positions_bs >= 0,
            query_positions_bt=positions_bt,
            key_positions_bs=key_positions_bs,
            ancestors_mrs=cache.ancestors_mrs,
            causal=True,
            **indices,
        )
        x_btd = self.apply("embed", tokens_bt, positions_bt)
        places: Any = {"positions_bt": positions_bt, "start": start, "key_positions_bs": key_positions_bs}
        x_btd, layers = self.stack.extend(self.layers, x_btd, cache.layers, mask=mask, **places, **inputs)
        return x_btd, dataclasses.replace(cache, layers=layers, filled_b=cache.filled_b + tokens_bt.shape[1])

    def apply(self, method: str, *inputs: Any) -> jax.Array:
        """Calls a method of the model."""
        return self.model.apply({"params": self.params}, *inputs, method=method)


@struct.dataclass
class DecoderStepper(StackStepper):
    """A decoder behind the `Stepper` protocol; made by `of`."""

    @classmethod
    def of(cls, model: Decoder, params: Any, cache_type: str = "auto") -> "DecoderStepper":
        """The stepper of a model with its trained parameters, and the type of its cache."""
        rest = {name: value for name, value in params.items() if name != "blocks"}
        layers = model.config.stack(causal=True).unstack(params["blocks"])
        return cls(rest, layers, model, cache_type=cache_type)

    def prefill(
        self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int, rewound: int = 0
    ) -> tuple[jax.Array, Cache]:
        """Reads right-padded prompts; returns the logits after the last token of each row and the cache."""
        rows, width = tokens_bt.shape
        # The padding is moved to the left, so that all rows end at the same slot.
        offsets_b = width - lengths_b
        tokens_bt = jax.vmap(jnp.roll)(tokens_bt, offsets_b)
        empty = tuple(self.stored(mixer.empty_cache(rows, width)) for mixer in self.stack.mixers)
        x_btd, cache = self.read(tokens_bt, Cache(empty, offsets_b, jnp.zeros_like(offsets_b), width), 0)
        return self.apply("logits", x_btd[:, -1:])[:, 0], self.grow(cache, room, rewound)

    def step(self, tokens_b: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Appends one token to each row."""
        logits_b1v, cache = self.extend(tokens_b[:, None], cache)
        return logits_b1v[:, 0], cache

    def extend(self, tokens_bn: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Appends n tokens to each row, in one pass."""
        x_bnd, cache = self.read(tokens_bn, cache, cache.filled_b[0])
        return self.apply("logits", x_bnd), cache

    def rewind(self, cache: Cache, n: jax.Array | int) -> Cache:
        """The cache without the last n tokens of each row."""
        return cache.rewind(n)

    def repeat(self, cache: Cache, n: int) -> Cache:
        """The cache with n adjacent copies of each row."""
        return cache.repeat(n)

    def reorder(self, cache: Cache, rows_b: jax.Array) -> Cache:
        """The cache with reordered or repeated rows."""
        return cache.take(rows_b)
