"""Multi-head latent attention (MLA): keys and values of all heads from one latent vector per token."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention.attention import Attention
from transformer.layers.attention.cache import KVCache
from transformer.layers.linear import contract
from transformer.layers.normalization import RMSNorm


class LatentAttention(Attention, kw_only=True):  # type: ignore[call-arg]
    """Only the latent c = RMSNorm(W^D x) and the rotary key r = rotate(W^R x) of a token x are cached:

    score_h = (q_h . (W_h^UK c) + rotate(p_h) . r) / sqrt(k + k / 2), value_h = W_h^UV c, with queries q, p.

    The cache has `latent_dim` (0: 2 k) + k / 2 numbers per token. Long queries, as in training, attend to the
    keys and values of each head. For few queries, as in decoding, these are never computed: since
    q . (W c) = (W^T q) . c, all heads use c itself as key and value, multi-query attention over latents.
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
        self.latent = self._linear((c,), ("embed", "latent"))
        self.rotary_key = self._linear((k // 2,), ("embed", "head_dim"))
        self.latent_norm = RMSNorm()
        self.key_up, self.value_up = _HeadKernel((c, h, k)), _HeadKernel((c, h, k))

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, h, k + k / 2): queries for keys from latents, then for rotary keys."""
        rotary_bthk = self.position.rotate(self.rotary_query(x_btd), positions_bt)
        q_bthk = jnp.concatenate([self.query(x_btd), rotary_bthk], axis=-1)
        return nn.with_logical_constraint(q_bthk, ("batch", "length", "heads", "head_dim"))

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> tuple[jax.Array, None]:
        """The latent and the rotary key of each token, (b, s, 1, c + k / 2)."""
        rotary_bsk = self.position.rotate(self.rotary_key(x_bsd)[:, :, None], positions_bs)[:, :, 0]
        key_bsk = jnp.concatenate([self.latent_norm(self.latent(x_bsd)), rotary_bsk], axis=-1)
        key_bsk = nn.with_logical_constraint(key_bsk, ("batch", "length", "head_dim"))
        return key_bsk[:, :, None], None

    def of_heads(self, key_bsk: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The keys (b, s, h, k + k / 2) and values (b, s, h, k) of each head."""
        latent_bsc, rotary_bsk = jnp.split(key_bsk, [self.latent_width], axis=-1)
        key_bshk, value_bshk = (
            nn.with_logical_constraint(
                contract(latent_bsc, up(), dtype=self.dtype), ("batch", "length", "heads", "head_dim")
            )
            for up in (self.key_up, self.value_up)
        )
        rotary_shape = *key_bshk.shape[:3], rotary_bsk.shape[-1]
        rotary_bshk = jnp.broadcast_to(rotary_bsk[:, :, None], rotary_shape)
        return jnp.concatenate([key_bshk, rotary_bshk], axis=-1), value_bshk

    def attend(self, q_bthk: jax.Array, k_bsgk: jax.Array, v_bsgk: jax.Array | None, *inputs) -> jax.Array:
        """Over the keys and values of each head, or over latents if that has fewer products."""
        if not self.absorbs(q_bthk.shape[1], k_bsgk.shape[1]):
            return super().attend(q_bthk, *self.of_heads(k_bsgk[:, :, 0]), *inputs)
        query_bthk, rotary_bthk = jnp.split(q_bthk, [self.head_dim], axis=-1)
        of_latents = self._per_head("bthk,chk->bthc", query_bthk, self.key_up())
        q_bthk = jnp.concatenate([of_latents, rotary_bthk], axis=-1)
        out_bthc = super().attend(q_bthk, k_bsgk, k_bsgk[..., : self.latent_width], *inputs)
        return self._per_head("bthc,chk->bthk", out_bthc, self.value_up())

    def absorbs(self, t: int, s: int) -> bool:
        """Whether t queries and s keys have fewer products if W^UK and W^UV are applied to queries and
        outputs, and not to latents."""
        c, k = self.latent_width, self.head_dim
        over_latents = t * 2 * k * c + t * s * (2 * c + k // 2)
        over_heads = s * 2 * k * c + t * s * (2 * k + k // 2)
        return over_latents < over_heads

    def shift(self, cache: KVCache, by: int) -> KVCache:
        """The cache of tokens that are `by` positions later; latents have no position."""
        latent_bsc, rotary_bsk = jnp.split(cache.key_bgsk, [self.latent_width], axis=-1)
        rotary = super().shift(dataclasses.replace(cache, key_bgsk=rotary_bsk), by)
        key_bgsk = jnp.concatenate([latent_bsc, rotary.key_bgsk], axis=-1)
        return dataclasses.replace(cache, key_bgsk=key_bgsk)

    @property
    def latent_width(self) -> int:
        """The width c of a latent."""
        return self.latent_dim or 2 * self.head_dim

    @property
    def cache_widths(self) -> tuple[int, int, int]:
        """One key for all heads, and no separate value."""
        return 1, self.latent_width + self.head_dim // 2, 0

    @property
    def heads_that_draw(self) -> int:
        """All h: keys and values are those of each head, also where they are never computed."""
        return self.num_heads

    @property
    def products_per_pair(self) -> int:
        """h (2 k + k / 2), over the keys and values of heads."""
        return self.num_heads * (2 * self.head_dim + self.head_dim // 2)

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
        names = ("latent", "heads", "head_dim")
        return self.param("kernel", nn.with_logical_partitioning(init, names), self.shape, jnp.float32)
