"""Multi-head attention: projections, heads, and one call to a kernel."""

import functools

import jax
from flax import linen as nn

from transformer.layers.cache import LayerCache
from transformer.layers.kernels import choose, reference
from transformer.layers.linear import Linear
from transformer.layers.masks import Mask
from transformer.layers.positions import Position


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(k) + bias, masked) V in each of h heads, joined by an output projection.

    MultiHead(x) = sum_h head_h W_h^O, head_h = Attention(x W_h^Q, x W_h^K, x W_h^V): writing the sum over
    heads is the same as concatenating them. `head_dim` is free: d_model / num_heads is the usual
    ("narrow") choice, up to d_model a head the "wide" one. With fewer `num_kv_heads` groups of query heads
    share keys and values (Ainslie et al. 2023); 1 is multi-query.
    Source: Vaswani et al. 2017, section 3.2.

    Fields beyond these: `position`, whose `rotate` and `bias` hooks act here; `kernel`, a key of `KERNELS`
    or "auto"; `dropout` on the attention weights; `output_scale`, which multiplies the variance of the
    output kernel's initialisation; `lora_rank` and `lora_alpha` of queries and values (see `Linear`).
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int
    position: Position
    kernel: str = "auto"
    dropout: float = 0.0
    use_bias: bool = True
    dtype: str = "float32"
    output_scale: float = 1.0
    lora_rank: int = 0
    lora_alpha: float = 16.0

    def setup(self) -> None:
        """The projections of the inputs; the output's follows from the input's width."""
        lora = {"lora_rank": self.lora_rank, "lora_alpha": self.lora_alpha}
        self.query = self._linear((self.num_heads, self.head_dim), ("embed", "heads", "head_dim"), **lora)
        shared = (self.num_kv_heads, self.head_dim), ("embed", "kv_heads", "head_dim")
        self.key, self.value = self._linear(*shared), self._linear(*shared, **lora)

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        *,
        mask: Mask,
        positions_bt: jax.Array,
        memory: LayerCache | None = None,
        cache: LayerCache | None = None,
        start: jax.Array | int = 0,
        key_positions_bs: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, LayerCache | None]:
        """(b, t, d) -> (b, t, d), and the cache with the new keys and values in its slots from `start` on.

        With a cache the queries also see what it holds: the mask's key axis is then the cache's slots, whose
        positions are `key_positions_bs`. With `memory`, which `remember` makes of another sequence, they see
        that instead of themselves (cross-attention, section 3.2.3).
        """
        q_bthk = self.position.rotate(self.query(x_btd), positions_bt)
        q_bthk = nn.with_logical_constraint(q_bthk, ("batch", "length", "heads", "head_dim"))
        seen = self.remember(x_btd, positions_bt) if memory is None else memory
        if cache is not None:
            seen = cache = cache.write(seen, start)
        key_bsgk, value_bsgk = seen.key_bgsk.swapaxes(1, 2), seen.value_bgsk.swapaxes(1, 2)
        key_positions_bs = positions_bt if key_positions_bs is None else key_positions_bs
        bias = self.position.bias(positions_bt, key_positions_bs, self.num_heads)
        dropping = train and self.dropout > 0
        dropout = {"dropout_rate": self.dropout, "dropout_rng": self.make_rng("dropout")} if dropping else {}
        if self._watched:
            out_bthk, weights_bhts = reference(
                q_bthk, key_bsgk, value_bsgk, mask=mask, bias=bias, return_weights=True, **dropout
            )
            self.sow("intermediates", "weights", weights_bhts)
        else:
            kernel = choose(self.kernel, q_bthk, key_bsgk, mask=mask)
            out_bthk = kernel(q_bthk, key_bsgk, value_bsgk, mask=mask, bias=bias, **dropout)
        names = ("heads", "head_dim", "embed")
        scale = self.output_scale
        output = self._linear((x_btd.shape[-1],), axis=2, names=names, init_scale=scale, name="output")
        return output(out_bthk), cache

    def remember(self, x_bsd: jax.Array, positions_bs: jax.Array) -> LayerCache:
        """The keys and values of a sequence: what queries are to see of it, now or later."""
        key_bsgk, value_bsgk = self.position.rotate(self.key(x_bsd), positions_bs), self.value(x_bsd)
        key_bsgk = nn.with_logical_constraint(key_bsgk, ("batch", "length", "kv_heads", "head_dim"))
        value_bsgk = nn.with_logical_constraint(value_bsgk, ("batch", "length", "kv_heads", "head_dim"))
        return LayerCache(key_bsgk.swapaxes(1, 2), value_bsgk.swapaxes(1, 2))

    @property
    def _linear(self) -> functools.partial:
        return functools.partial(Linear, use_bias=self.use_bias, dtype=self.dtype)

    @property
    def _watched(self) -> bool:
        return self.is_mutable_collection("intermediates") and not self.is_initializing()
