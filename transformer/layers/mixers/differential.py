"""Differential attention: weights that are the difference of two softmaxes, which cancels their noise."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.attention import MultiHeadAttention
from transformer.layers.attention.cache import KVCache
from transformer.layers.attention.masks import Mask
from transformer.layers.normalization import RMSNorm


class DifferentialAttention(MultiHeadAttention, kw_only=True):  # type: ignore[call-arg]
    """sum_h W_h^O (1 - l_0) RMSNorm((A_h - l B_h) V_h), with A and B the softmaxes of two halves of a head,

    q = [q^A, q^B] and k = [k^A, k^B], scores q^A . k^A / sqrt(k / 2), and values of the whole width k. Of the
    layer i = 0, 1, ... l = exp(a . b) - exp(c . d) + l_0 with four learned vectors of width k / 2, and l_0 =
    0.8 - 0.6 exp(-0.3 i). Encodings that rotate see halves; those with a bias see 2 h heads.
    Source: Ye et al. 2025, "Differential Transformer", sections 2.1 and 2.2.

    Raises:
      UserError: heads have no halves.
    """

    norm_epsilon: float = 1e-6

    heads_of_width: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim % 2:
            raise UserError(f"head_dim: {self.head_dim} is odd; mixer 'differential' halves it")

    def setup(self) -> None:
        """Those of the heads, the four vectors, and the norm, whose scale all heads share."""
        super().setup()
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), (None,))
        names = "query_a", "key_a", "query_b", "key_b"
        self.balance = [
            self.param(f"balance_{name}", init, (self.rotary_width,), jnp.float32) for name in names
        ]
        self.output_norm = RMSNorm(self.norm_epsilon)

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, 2 h, k / 2): the first halves of all heads, then the second ones."""
        q_bthk = halves(self.query(x_btd))
        q_bthk = self.position.rotate(self.query_norm(q_bthk) if self.qk_norm else q_bthk, positions_bt)
        return nn.with_logical_constraint(q_bthk, ("batch", "length", "heads", "head_dim"))

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values of g heads, of width k."""
        axes = ("batch", "length", "kv_heads", "head_dim")
        k_bsgk = halves(self.key(x_bsd))
        k_bsgk = whole(self.position.rotate(self.key_norm(k_bsgk) if self.qk_norm else k_bsgk, positions_bs))
        value_bsgk = nn.with_logical_constraint(self.value(x_bsd), axes)
        return nn.with_logical_constraint(k_bsgk, axes), value_bsgk

    def shift(self, cache: KVCache, by: int) -> KVCache:
        """The cache of tokens that are `by` positions later."""
        k_bsgk = halves(cache.key_bgsk.swapaxes(1, 2))
        k_bsgk = whole(self.position.rotate(k_bsgk, jnp.full((1, 1), by)))
        return dataclasses.replace(cache, key_bgsk=k_bsgk.swapaxes(1, 2))

    def attend(
        self, q_bthk: jax.Array, k_bsgk: jax.Array, v_bsgk: Any, mask: Mask, *inputs: Any
    ) -> jax.Array:
        """The normalised differences, (b, t, h, k), by one kernel for both halves."""
        v_bsgk = jnp.concatenate([v_bsgk, v_bsgk], axis=2)
        out_bthk = super().attend(q_bthk, halves(k_bsgk), v_bsgk, mask, *inputs).astype(jnp.float32)
        first_bthk, second_bthk = jnp.split(out_bthk, 2, axis=2)
        a_k, b_k, c_k, d_k = self.balance
        start = 0.8 - 0.6 * jnp.exp(-0.3 * jnp.float32(0 if mask.layer is None else mask.layer))
        share = jnp.exp(a_k @ b_k) - jnp.exp(c_k @ d_k) + start
        normal_bthk = self.output_norm(first_bthk - share * second_bthk)
        return ((1 - start) * normal_bthk).astype(q_bthk.dtype)

    @property
    def heads_that_draw(self) -> int:
        """Both halves of the g heads."""
        return 2 * self.num_kv_heads

    @property
    def products_per_pair(self) -> int:
        """3 h k: scores of halves, and the values once for each."""
        return 3 * self.num_heads * self.head_dim

    @property
    def rotary_width(self) -> int:
        """The width of half a head."""
        return self.head_dim // 2

    @property
    def scale(self) -> float:
        """1 / sqrt(k / 2)."""
        return self.rotary_width**-0.5


def halves(x_bthk: jax.Array) -> jax.Array:
    """(b, t, h, k) -> (b, t, 2 h, k / 2): the first halves of all heads, then the second ones."""
    return jnp.concatenate(jnp.split(x_bthk, 2, axis=-1), axis=2)


def whole(x_bthk: jax.Array) -> jax.Array:
    """The reverse of `halves`."""
    return jnp.concatenate(jnp.split(x_bthk, 2, axis=2), axis=-1)
