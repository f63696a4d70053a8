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
    output kernel's initialisation.
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

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        *,
        mask: Mask,
        positions_bt: jax.Array,
        cache: LayerCache | None = None,
        start: jax.Array | int = 0,
        key_positions_bs: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, LayerCache | None]:
        """(b, t, d) -> (b, t, d), and the cache with the new keys and values in its slots from `start` on.

        With a cache the queries also see what it holds: the mask's key axis is then the cache's slots, whose
        positions are `key_positions_bs`.
        """
        linear = functools.partial(Linear, use_bias=self.use_bias, dtype=self.dtype)
        to_kv = functools.partial(
            linear, (self.num_kv_heads, self.head_dim), names=("embed", "kv_heads", "head_dim")
        )
        q_bthk = linear((self.num_heads, self.head_dim), names=("embed", "heads", "head_dim"), name="query")(
            x_btd
        )
        key_bsgk = to_kv(name="key")(x_btd)
        value_bsgk = to_kv(name="value")(x_btd)
        q_bthk = self.position.rotate(q_bthk, positions_bt)
        key_bsgk = self.position.rotate(key_bsgk, positions_bt)
        q_bthk = nn.with_logical_constraint(q_bthk, ("batch", "length", "heads", "head_dim"))
        key_bsgk = nn.with_logical_constraint(key_bsgk, ("batch", "length", "kv_heads", "head_dim"))
        value_bsgk = nn.with_logical_constraint(value_bsgk, ("batch", "length", "kv_heads", "head_dim"))

        key_positions_bs = positions_bt if key_positions_bs is None else key_positions_bs
        if cache is not None:
            cache = cache.write(key_bsgk, value_bsgk, start)
            key_bsgk, value_bsgk = cache.key_bgsk.swapaxes(1, 2), cache.value_bgsk.swapaxes(1, 2)
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
        output = linear((x_btd.shape[-1],), axis=2, names=names, init_scale=self.output_scale, name="output")
        return output(out_bthk), cache

    @property
    def _watched(self) -> bool:
        return self.is_mutable_collection("intermediates") and not self.is_initializing()
