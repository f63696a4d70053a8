"""Relative positions of Transformer-XL: a sinusoid of the distance, and learned biases of the queries."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention.positions.base import Position
from transformer.layers.attention.positions.sinusoidal import sinusoid


class RelativeSinusoidal(Position):
    """((q_i + u) . k_j + (q_i + v) . W_r R_{i-j}) / sqrt(k), where R is the sinusoid of the distance, h k
    wide.

    u, v (h, k) and W_r (h k, h, k) are learned in each layer. Source: Dai et al. 2019, section 3.3.

    R_{i-j} is never computed. With (A_f, B_f) the products of q_i + v and the two rows of W_r for frequency
    w_f, the second term is sum_f A_f sin((i - j) w_f) + B_f cos((i - j) w_f), which equals

    sum_f (B_f sin(i w_f) - A_f cos(i w_f)) sin(j w_f) + (A_f sin(i w_f) + B_f cos(i w_f)) cos(j w_f):

    features of the query times R_j. So one matrix product, with h times the work of q . k, handles positions
    in any order.
    """

    base: float = 10000.0

    of_head_width: ClassVar[bool] = True
    per_layer: ClassVar[bool] = True

    def query_bias(self, q_bthk: jax.Array) -> jax.Array:
        """q + u."""
        return q_bthk + self._parameter("content_bias", q_bthk.shape[2:], 0.02).astype(q_bthk.dtype)

    def bias(
        self, q_bthk: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array:
        """(b, h, t, s) float32."""
        heads, head_dim = q_bthk.shape[2:]
        width = heads * head_dim + heads * head_dim % 2  # a sine and a cosine for each frequency
        kernel = self._parameter("kernel", (width, heads, head_dim), width**-0.5)
        query = q_bthk.astype(jnp.float32) + self._parameter("position_bias", (heads, head_dim), 0.02)
        products = jnp.einsum("bthk,fhk->bthf", query / math.sqrt(head_dim), kernel)
        r_bt1f = sinusoid(query_positions_bt, width, self.base)[:, :, None]
        a, b, sine, cosine = products[..., ::2], products[..., 1::2], r_bt1f[..., ::2], r_bt1f[..., 1::2]
        features = jnp.stack([b * sine - a * cosine, a * sine + b * cosine], axis=-1).reshape(products.shape)
        return jnp.einsum("bthf,bsf->bhts", features, sinusoid(key_positions_bs, width, self.base))

    @nn.compact
    def _parameter(self, name: str, shape: tuple[int, ...], scale: float) -> jax.Array:
        axes = ("embed", "heads", "head_dim")[-len(shape) :]
        init = nn.with_logical_partitioning(nn.initializers.normal(scale), axes)
        return self.param(name, init, shape, jnp.float32)
