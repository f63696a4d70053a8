"""Transformer-XL: a decoder that caches the keys and values of earlier segments."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.config import Nonnegative, Positive
from transformer.errors import UserError
from transformer.layers.attention.cache import KVCache
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import PATTERNS
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.mixers import Attention
from transformer.models.decoder import Decoder, DecoderConfig

RELATIVE = tuple(name for name, kind in POSITIONS.items() if not kind.has("embed"))
"""Relative position encodings, which do not count from the start of a text."""

RELATIVE_PATTERNS = tuple(name for name, make in PATTERNS.items() if make is None or make(1, 1).relative)
"""Patterns that do not count from the start of a text."""


@dataclass(frozen=True)
class TransformerXLConfig(DecoderConfig):
    """The config of a decoder with memory."""

    changing: ClassVar = (*DecoderConfig.changing, "memory_length", "evaluation_memory")

    position: str = "transformer_xl"
    memory_length: Positive = 256  # tokens of earlier segments to attend to
    evaluation_memory: Nonnegative = 0  # memory_length in evaluation; 0: the same

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position not in RELATIVE:
            expected = ", ".join(map(repr, RELATIVE))
            raise UserError(
                f"position: {self.position!r} is an absolute encoding; expected one of {expected}"
            )
        for name, kind in self.kinds.items():
            if kind.pattern not in RELATIVE_PATTERNS:
                key = f"layer_kinds.{name}.pattern" if name else "pattern"
                expected = ", ".join(map(repr, RELATIVE_PATTERNS))
                raise UserError(
                    f"{key}: {kind.pattern!r} counts from the start of a text; expected one of {expected}"
                )
        for mixer in self.stack(causal=True).mixers:
            if not isinstance(mixer, Attention):
                raise UserError(
                    "mixer: a recurrent mixer has no keys and values; a model with memory needs them"
                )

    def build(self, vocab_size: int) -> nn.Module:
        """The model for a tokenizer of `vocab_size` tokens."""
        make = self.with_values(TransformerXL) if self.value_embeddings else TransformerXL
        return make(self, self.entries(vocab_size))


@struct.dataclass
class Memory:
    """The keys and values of each layer for the last m tokens of each row, newest last.

    `segments_bm` has the document number of each token; 0: no token.
    """

    layers: tuple[KVCache, ...]
    segments_bm: jax.Array

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, length: int) -> "Memory":
        """A memory without tokens."""
        mixers = config.stack(causal=True).mixers
        layers = tuple(mixer.empty_cache(batch, length) for mixer in mixers)
        return cls(layers, jnp.zeros((batch, length), jnp.int32))

    def continued(self, continues_b: jax.Array) -> "Memory":
        """The memory, cleared in the rows where `continues_b` is 0."""
        return self.replace(segments_bm=self.segments_bm * continues_b[:, None])  # type: ignore[attr-defined]


class TransformerXL(Decoder):
    """A decoder over segments: h_n = Block_n over the keys and values of [SG(memory_n), h_(n-1)].

    The memory has a stop-gradient (SG); the context still grows with every layer. The memory is a KV cache as
    in decoding; the original stores the inputs of the layers and projects them again.
    Source: Dai et al. 2019, section 3.2.
    """

    config: TransformerXLConfig

    def recur(
        self, tokens_bt: jax.Array, memory: Memory, *, segments_bt: jax.Array, train: bool = False
    ) -> tuple[jax.Array, Memory]:
        """(b, t) tokens -> (b, t, d), the input of `unembed`, and the memory of the last m tokens.

        Tokens attend to earlier tokens of their own document, including those in the memory.
        """
        (b, t), m, stack = tokens_bt.shape, memory.segments_bm.shape[1], self.config.stack(causal=True)
        segments_bs = jnp.concatenate([memory.segments_bm, segments_bt], axis=1)
        places_bs = jnp.broadcast_to(jnp.arange(m + t), (b, m + t))

        def last(mixer: Any, cache: KVCache) -> KVCache:
            cache = jax.tree.map(lambda x_bgsk: jax.lax.stop_gradient(x_bgsk[:, :, t:]), cache)
            return mixer.shift(cache, -t)  # the positions of these tokens in the next segment

        x_btd, layers = stack.run(
            self,
            "blocks",
            self.variables["params"]["blocks"],
            self.embed(tokens_bt, places_bs[:, m:], train),
            caches=memory.layers,
            keep=last,
            train=train,
            mask=Mask(segments_bt, segments_bs, segments_bs > 0, start=m, causal=True),
            positions_bt=places_bs[:, m:],
            start=m,
            key_positions_bs=places_bs,
        )
        return self.normalize(x_btd), Memory(layers, segments_bs[:, t:])
