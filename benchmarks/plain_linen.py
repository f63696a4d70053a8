"""A baseline: GPT-2 of flax's own modules, with `jax.nn.dot_product_attention`."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.common import Shape


class PlainBlock(nn.Module):
    num_heads: int
    dtype: str

    @nn.compact
    def __call__(self, x_btd: jax.Array) -> jax.Array:
        b, t, d = x_btd.shape
        y = nn.LayerNorm(dtype=self.dtype)(x_btd)
        q, k, v = (nn.Dense(d, dtype=self.dtype)(y).reshape(b, t, self.num_heads, -1) for _ in range(3))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, d)
        x_btd = x_btd + nn.Dense(d, dtype=self.dtype)(y)
        y = nn.Dense(4 * d, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x_btd))
        return x_btd + nn.Dense(d, dtype=self.dtype)(nn.gelu(y))


class PlainDecoder(nn.Module):
    shape: Shape
    dtype: str

    @nn.compact
    def __call__(self, tokens_bt: jax.Array) -> jax.Array:
        s = self.shape
        embedding = nn.Embed(s.vocab_size, s.d_model, dtype=self.dtype)
        x_btd = embedding(tokens_bt) + nn.Embed(s.length, s.d_model, dtype=self.dtype)(jnp.arange(s.length))
        for _ in range(s.num_layers):
            x_btd = PlainBlock(s.num_heads, self.dtype)(x_btd)
        return embedding.attend(nn.LayerNorm(dtype=self.dtype)(x_btd)).astype(jnp.float32)
