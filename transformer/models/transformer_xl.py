"""A decoder that remembers the keys and values of the segments it read before."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.config import Nonnegative, Positive
from transformer.errors import UserError
from transformer.layers.cache import KVCache
from transformer.layers.masks import Mask
from transformer.layers.mixers import Attention, MultiHeadAttention
from transformer.layers.positions import POSITIONS, Rope
from transformer.models.decoder import Decoder, DecoderConfig

RELATIVE = tuple(name for name, kind in POSITIONS.items() if not kind.has("embed"))
"""Encodings of distances, which need no beginning that positions are counted from."""


@dataclass(frozen=True)
class TransformerXLConfig(DecoderConfig):
    """The shape of a decoder with memory."""

    position: str = "transformer_xl"
    memory_length: Positive = 256  # tokens of earlier segments that are attended to
    evaluation_memory: Nonnegative = 0  # the same in evaluation; 0: as many

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position not in RELATIVE:
            expected = ", ".join(map(repr, RELATIVE))
            raise UserError(
                f"position: {self.position!r} counts from a beginning; expected one of {expected}"
            )
        for key in ("attention_dropout", "scan_layers", "lora_rank"):
            if getattr(self, key):
                raise UserError(f"{key}: {getattr(self, key)}; a model with memory does without it")
        for mixer in self.stack(causal=True).mixers:
            if not isinstance(mixer, Attention):
                raise UserError(
                    "mixer: a recurrent one has no keys and values; a model with memory needs them"
                )
            rotated = isinstance(mixer.position, Rope)
            if rotated and (not isinstance(mixer, MultiHeadAttention) or mixer.position.scaling != "none"):
                raise UserError(
                    f"position: 'rope' with memory needs mixer 'multi_head' and position_scaling 'none', not "
                    f"{self.mixer!r} and {self.position_scaling!r}"
                )
        if self.remat != "none":
            raise UserError(f"remat: {self.remat!r}; a model with memory does without it, so 'none'")

    def build(self, vocab_size: int) -> nn.Module:
        """The model for so many tokens."""
        return TransformerXL(self, vocab_size)


@struct.dataclass
class Memory:
    """What each layer kept of the last m tokens of each row, the newest last, and whose they were.

    `segments_bm` has the number of each token's document; 0: there is no such token.
    """

    layers: tuple[KVCache, ...]
    segments_bm: jax.Array

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, length: int) -> "Memory":
        """Nothing read yet."""
        mixers = config.stack(causal=True).mixers
        layers = tuple(mixer.empty_cache(batch, length) for mixer in mixers)
        return cls(layers, jnp.zeros((batch, length), jnp.int32))

    def continued(self, continues_b: jax.Array) -> "Memory":
        """The same, forgotten in the rows that do not continue it."""
        return self.replace(segments_bm=self.segments_bm * continues_b[:, None])  # type: ignore[attr-defined]


class TransformerXL(Decoder):
    """A decoder over segments: h_n = Block_n over the keys and values of [SG(memory_n), h_(n-1)].

    No gradient goes into the memory (SG), whose reach still grows with every layer. It is what decoding keeps
    of a prompt, and read by the same code; the original keeps the layers' inputs and projects them anew.
    Source: Dai et al. 2019, section 3.2.
    """

    config: TransformerXLConfig

    def recur(
        self, tokens_bt: jax.Array, memory: Memory, *, segments_bt: jax.Array, train: bool = False
    ) -> tuple[jax.Array, Memory]:
        """(b, t) tokens -> (b, t, d), what `unembed` turns into logits, and the memory of the last m tokens.

        Tokens see those before them of their own document, in the memory too.
        """
        c, (b, t), m = self.config, tokens_bt.shape, memory.segments_bm.shape[1]
        segments_bs = jnp.concatenate([memory.segments_bm, segments_bt], axis=1)
        places_bs = jnp.broadcast_to(jnp.arange(m + t), (b, m + t))
        longer: Any = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, t), (0, 0))), memory.layers)
        dropping = train and c.dropout > 0
        stack = c.stack(causal=True)
        x_btd, layers = stack.extend(
            stack.unstack(self.variables["params"]["blocks"]),
            self.embed(tokens_bt, places_bs[:, m:], train),
            longer,
            rngs_n=jax.random.split(self.make_rng("dropout"), c.num_layers) if dropping else None,
            mask=Mask(segments_bt, segments_bs, segments_bs > 0, places_bs[:, m:], causal=True),
            positions_bt=places_bs[:, m:],
            start=m,
            key_positions_bs=places_bs,
            train=train,
        )

        def keep(layer: KVCache, mixer: Any) -> KVCache:
            key_bgmk, value_bgmk = jax.lax.stop_gradient(
                (layer.key_bgsk[:, :, t:], layer.value_bgsk[:, :, t:])
            )
            # In the next segment they stand t places earlier, to which keys that were turned are turned back.
            back_b1 = jnp.full((1, 1), -t)
            key_bmgk = mixer.position.rotate(key_bgmk.swapaxes(1, 2), back_b1)
            return KVCache(key_bmgk.swapaxes(1, 2), value_bgmk)

        return self.normalize(x_btd), Memory(tuple(map(keep, layers, stack.mixers)), segments_bs[:, t:])
