"""Token embeddings, and the projection to the vocabulary."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.linear import contract
from transformer.layers.quantized import Quantized

PADDED_LOGIT = -1e9
"""The logit of vocabulary padding: its exp is 0, but 0 times it is finite."""

Part = Callable[[jax.Array, int], jax.Array]
"""A part of the vocabulary: (x, axis) -> x with some of the tokens that lie along the axis, in their order.
Whoever asks for the logits of a part masks its padding."""

TABLE_STD = 0.02
"""The standard deviation of initial embeddings of tokens and positions."""


def whole(x: jax.Array, axis: int) -> jax.Array:
    """The part that is all of the vocabulary."""
    return x


class Embedding(nn.Module):
    """A table of one d-vector per token, with `vocab_size` rows padded to a multiple of `multiple`.

    `__call__` looks tokens up. With `scale` embeddings are multiplied by sqrt(d) (Vaswani et al. 2017,
    section 3.4), and the table is initialised with variance 1/d, so that embeddings have unit variance. With
    `rms` they are scaled to have this root mean square initially. `attend` returns the logits
    `logit_scale` x . table_v, tied to the unscaled table, and limited by `soft_cap` (see `mask_padding`).
    """

    vocab_size: int
    d_model: int
    multiple: int = 128
    scale: bool = False
    dtype: str = "float32"
    rms: float = 0.0
    logit_scale: float = 1.0
    soft_cap: float = 0.0
    logits_dtype: str = "float32"  # type in which the product of the logits is stored
    rows: str = "vocab"  # the logical axis of the table's rows; without a rule for it, each device has all

    def setup(self) -> None:
        """One parameter: `table` (v, d)."""
        init = nn.with_logical_partitioning(nn.initializers.normal(self._deviation), (self.rows, "embed"))
        rows = padded_size(self.vocab_size, self.multiple)
        self.table = self.param("table", init, (rows, self.d_model), jnp.float32)

    def __call__(self, tokens_bt: jax.Array) -> jax.Array:
        """(b, t) integers -> (b, t, d)."""
        # Gathered over `context`, which divides tokens: else XLA would look up all of a batch on each device.
        axes = None if isinstance(self.table, Quantized) else (self.rows, "lookup_embed")
        table = nn.with_logical_constraint(self.table, axes)
        rows: Any = jax.tree.map(lambda part: jnp.take(part, tokens_bt, axis=0), table)
        # Divided as the table is, so that devices add up the table's gradient in their columns of it.
        x_btd = nn.with_logical_constraint(rows.astype(self.dtype), ("lookup", "length", "lookup_embed"))
        if self.rms:
            return x_btd * jnp.asarray(self.rms / self._deviation, x_btd.dtype)
        return x_btd * jnp.asarray(self.d_model**0.5, x_btd.dtype) if self.scale else x_btd

    def attend(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(b, t, d) -> float32 logits (b, t, v), with padded v; the logits of padding are `PADDED_LOGIT`."""
        table_vd = part(self.table, 0)
        types: Any = {"dtype": self.dtype, "out_dtype": self.logits_dtype}
        logits_btv = contract(x_btd, table_vd, **types, transposed=True).astype(jnp.float32)
        return mask_padding(logits_btv * self.logit_scale, self.vocab_size, self.soft_cap)

    @property
    def _deviation(self) -> float:
        return self.d_model**-0.5 if self.scale else TABLE_STD


class Unembedding(nn.Module):
    """An untied projection to the vocabulary, logits = x . kernel, padded, masked and limited as in
    `Embedding`."""

    vocab_size: int
    multiple: int = 128
    dtype: str = "float32"
    soft_cap: float = 0.0
    logits_dtype: str = "float32"

    @nn.compact
    def __call__(self, x_btd: jax.Array, part: Part = whole) -> jax.Array:
        """(b, t, d) -> float32 logits (b, t, v)."""
        d_model = x_btd.shape[-1]
        init = nn.with_logical_partitioning(nn.initializers.normal(d_model**-0.5), ("embed", "vocab"))
        kernel_dv = self.param(
            "kernel", init, (d_model, padded_size(self.vocab_size, self.multiple)), jnp.float32
        )
        logits_btv = contract(x_btd, part(kernel_dv, 1), dtype=self.dtype, out_dtype=self.logits_dtype)
        return mask_padding(logits_btv.astype(jnp.float32), self.vocab_size, self.soft_cap)


def output_bias(module: nn.Module, vocab_size: int, multiple: int) -> jax.Array:
    """The parameter `output_bias` of a module: a bias (v) of each token's logit, padded, initially 0."""
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
    return module.param("output_bias", zeros, (padded_size(vocab_size, multiple),), jnp.float32)


def padded_size(vocab_size: int, multiple: int) -> int:
    """The vocabulary size rounded up to a multiple, for sharding and matrix units."""
    return -(-vocab_size // multiple) * multiple


def mask_padding(logits_btv: jax.Array, vocab_size: int, soft_cap: float = 0.0) -> jax.Array:
    """Sets the logits from `vocab_size` on to `PADDED_LOGIT`. With a `soft_cap` c the others become
    c tanh(logit / c), between -c and c (Gemma Team 2024, Gemma 2, section 2)."""
    logits_btv = soft_cap * jnp.tanh(logits_btv / soft_cap) if soft_cap else logits_btv
    real_v = jnp.arange(logits_btv.shape[-1]) < vocab_size
    return logits_btv if len(real_v) <= vocab_size else jnp.where(real_v, logits_btv, PADDED_LOGIT)
