"""The decoder-only Transformer: a causal language model."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.embedding import Embedding, Unembedding
from transformer.layers.masks import Mask
from transformer.layers.stack import init_stack, run_blocks
from transformer.models.stack_config import StackConfig, check_rms


@dataclass(frozen=True)
class DecoderConfig(StackConfig):
    """The shape of a decoder; `configs/base/` says what each key means."""

    tie_embeddings: bool = True
    scale_embeddings: bool = False
    embedding_rms: float = 0.0
    position_rms: float = 0.0
    vocab_multiple: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_multiple < 1:
            raise UserError(f"vocab_multiple: {self.vocab_multiple}; expected at least 1")
        check_rms(self.embedding_rms, self.position_rms, self.position)

    @property
    def added_rms(self) -> float:
        """What `position_rms` says, or `embedding_rms`."""
        return self.position_rms or self.embedding_rms

    def build(self, vocab_size: int) -> nn.Module:
        """The model for so many tokens."""
        return Decoder(self, vocab_size)


class Decoder(nn.Module):
    """p(x_t | x_<t) = softmax(Unembed(Norm(Block_n(... Block_1(Embed(x_<t)))))).

    Source: Vaswani et al. 2017 (the decoder without its encoder; Liu et al. 2018, Radford et al. 2018).
    """

    config: DecoderConfig
    vocab_size: int

    def setup(self) -> None:
        """The parts around the blocks, whose stacked parameters `hidden` makes."""
        c = self.config
        self.embedding = Embedding(
            self.vocab_size, c.d_model, c.vocab_multiple, c.scale_embeddings, c.dtype, c.embedding_rms
        )
        self.position = c.positions()
        self.embedding_dropout = nn.Dropout(c.embedding_dropout)
        if c.norm_placement != "post":
            self.final_norm = c.normalization()
        if not c.tie_embeddings:
            self.unembedding = Unembedding(self.vocab_size, c.vocab_multiple, c.dtype)

    def __call__(self, tokens_bt: jax.Array, **inputs: Any) -> jax.Array:
        """(b, t) tokens -> float32 logits (b, t, v) of each one's successor; `inputs` as for `hidden`."""
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
        """(b, t) tokens -> (b, t, d), what `unembed` turns into logits.

        `segments_bt` keeps packed documents apart, `positions_bt` counts within them (0, 1, ... when None).
        """
        c = self.config
        if positions_bt is None:
            positions_bt = jnp.broadcast_to(jnp.arange(tokens_bt.shape[1]), tokens_bt.shape)
        blocks = c.blocks(causal=True)
        example = {"mask": Mask(causal=True), "positions_bt": positions_bt[:1, :1]}
        init = init_stack(blocks[0], c.num_layers)
        params_n = self.param("blocks", init, jnp.zeros((1, 1, c.d_model), c.dtype), **example)
        x_btd = run_blocks(
            self,
            "blocks",
            blocks,
            params_n,
            self.embed(tokens_bt, positions_bt, train),
            **c.running,
            mask=Mask(segments_bt, segments_bt, causal=True),
            positions_bt=positions_bt,
            train=train,
        )
        return self.normalize(x_btd)

    def embed(self, tokens_bt: jax.Array, positions_bt: jax.Array, train: bool = False) -> jax.Array:
        """(b, t) tokens -> (b, t, d): embeddings plus positions, after dropout."""
        x_btd = self.position.embed(self.embedding(tokens_bt), positions_bt)
        x_btd = self.embedding_dropout(x_btd, deterministic=not train)
        return nn.with_logical_constraint(x_btd, ("batch", "length", "activation_embed"))

    def normalize(self, x_btd: jax.Array) -> jax.Array:
        """The final normalisation, which the post-norm form does without."""
        return x_btd if self.config.norm_placement == "post" else self.final_norm(x_btd)

    def unembed(self, x_btd: jax.Array) -> jax.Array:
        """(b, t, d) -> float32 logits (b, t, v), v rounded up to `vocab_multiple`."""
        logits_btv = self.embedding.attend(x_btd) if self.config.tie_embeddings else self.unembedding(x_btd)
        return nn.with_logical_constraint(logits_btv, ("batch", "length", "vocab"))
