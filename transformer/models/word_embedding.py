"""Word vectors: the skip-gram model, with one table for words and one for context words."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import Positive
from transformer.layers.embedding import Embedding
from transformer.models.model_config import ModelConfig


@dataclass(frozen=True)
class SkipGramConfig(ModelConfig):
    """The config of a skip-gram model."""

    own: ClassVar = ("dtype",)
    harmless: ClassVar = ("vocab_multiple",)

    d_model: Positive = 128  # width of a word vector
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the computation; parameters are float32
    vocab_multiple: Positive = 128  # pad the vocabulary to a multiple, for the hardware and the mesh


class SkipGram(nn.Module):
    """score(c, o) = u_o . v_c of centre word c and context word o.

    v are the rows of `embedding`, the word vectors, and u those of `context`.

    Source: Mikolov et al. 2013b, "Distributed Representations of Words and Phrases", section 2.
    """

    config: SkipGramConfig
    vocab_size: int

    def setup(self) -> None:
        """The two tables."""
        c = self.config
        self.embedding = Embedding(self.vocab_size, c.d_model, c.vocab_multiple, dtype=c.dtype)
        self.context = Embedding(self.vocab_size, c.d_model, c.vocab_multiple, dtype=c.dtype)

    def __call__(self, tokens_bt: jax.Array, noise_bk: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Words (b, t) and negative samples (b, k) -> float32 scores of each word of a row, as the centre
        word, with each word of the row (b, t, s), and with the row's negative samples (b, t, k)."""
        v_btd = self.embedding(tokens_bt)
        u_bsd, u_bkd = self.context(tokens_bt), self.context(noise_bk)
        return _scores(v_btd, u_bsd), _scores(v_btd, u_bkd)


def _scores(v_btd: jax.Array, u_bsd: jax.Array) -> jax.Array:
    return jnp.einsum("btd,bsd->bts", v_btd, u_bsd, preferred_element_type=jnp.float32)
