"""Multi-head latent attention (MLA): keys and values of all heads from one latent vector per token."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.cache import KVCache
from transformer.layers.mixers.attention import Attention
from transformer.layers.normalization import RMSNorm


class LatentAttention(Attention, kw_only=True):  # type: ignore[call-arg]
    """Only the latent c = RMSNorm(W^D x) and the rotary key r = rotate(W^R x) of a token x are cached:

    score_h = (q_h . (W_h^UK c) + rotate(p_h) . r) / sqrt(k + k / 2), value_h = W_h^UV c, with queries q, p.

    Since q . (W c) = (W^T q) . c, all heads use c itself as key and value. This is multi-query attention over
    latents: keys and values of the heads are never computed, and the cache has `latent_dim` (0: 2 k) + k / 2
    numbers per token.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1, with its equations 9 to 19; queries uncompressed.
    """

    num_heads: int
    head_dim: int
    latent_dim: int = 0

    def setup(self) -> None:
        """The projections of the inputs, and the two from latents to heads."""
        h, k, c = self.num_heads, self.head_dim, self.latent_width
        self.query = self._linear((h, k), ("embed", "heads", "head_dim"))
        self.rotary_query = self._linear((h, k // 2), ("embed", "heads", "head_dim"))
        self.latent = self._linear((c,), ("embed", "head_dim"))
        self.rotary_key = self._linear((k // 2,), ("embed", "head_dim"))
        self.latent_norm = RMSNorm()
        self.key_up, self.value_up = _HeadKernel((c, h, k)), _HeadKernel((c, h, k))

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, h, c + k / 2): queries for latents, then for rotary keys."""
        of_latents = self._per_head("bthk,chk->bthc", self.query(x_btd), self.key_up())
        rotary_bthk = self.position.rotate(self.rotary_query(x_btd), positions_bt)
        return jnp.concatenate([of_latents, rotary_bthk], axis=-1)

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> KVCache:
        """The latent and the rotary key of each token."""
        rotary_bsk = self.position.rotate(self.rotary_key(x_bsd)[:, :, None], positions_bs)[:, :, 0]
        key_bsk = jnp.concatenate([self.latent_norm(self.latent(x_bsd)), rotary_bsk], axis=-1)
        key_bsk = nn.with_logical_constraint(key_bsk, ("batch", "length", "head_dim"))
        return KVCache(key_bsk[:, None], key_bsk[:, None, :, :0])

    def read(self, cache: KVCache) -> tuple[jax.Array, jax.Array]:
        """Keys and values from the cache; the values are the latents."""
        key_bs1k = cache.key_bgsk.swapaxes(1, 2)
        return key_bs1k, key_bs1k[..., : self.latent_width]

    def shift(self, cache: KVCache, by: int) -> KVCache:
        """The cache of tokens that are `by` positions later; latents have no position."""
        latent_bsc, rotary_bsk = jnp.split(cache.key_bgsk, [self.latent_width], axis=-1)
        rotary = super().shift(dataclasses.replace(cache, key_bgsk=rotary_bsk), by)
        key_bgsk = jnp.concatenate([latent_bsc, rotary.key_bgsk], axis=-1)
        return dataclasses.replace(cache, key_bgsk=key_bgsk)

    def join(self, out_bthk: jax.Array, width: int) -> jax.Array:
        """Weighted sums of latents (b, t, h, c) -> (b, t, width)."""
        return super().join(self._per_head("bthc,chk->bthk", out_bthk, self.value_up()), width)

    @property
    def latent_width(self) -> int:
        """The width c of a latent."""
        return self.latent_dim or 2 * self.head_dim

    @property
    def cache_widths(self) -> tuple[int, int, int]:
        """One key for all heads, and no separate value."""
        return 1, self.latent_width + self.head_dim // 2, 0

    @property
    def rotary_width(self) -> int:
        """The width of the rotary keys."""
        return self.head_dim // 2

    @property
    def scale(self) -> float:
        """1 / sqrt(k + k / 2), by the width of the keys before absorption."""
        return (self.head_dim + self.head_dim // 2) ** -0.5

    def _per_head(self, form: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
        kernel = kernel.astype(self.dtype)
        return jnp.einsum(form, x, kernel, preferred_element_type=jnp.float32).astype(self.dtype)


class _HeadKernel(nn.Module):
    """A matrix (c, k) for each head, with the parameter name of `Linear`."""

    shape: tuple[int, int, int]

    @nn.compact
    def __call__(self) -> jax.Array:
        init = nn.initializers.normal(self.shape[0] ** -0.5)
        names = (None, "heads", "head_dim")
        return self.param("kernel", nn.with_logical_partitioning(init, names), self.shape, jnp.float32)
