"""The base class of mixers whose state is a matrix for each head."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.linear import Linear
from transformer.layers.mixers.base import Mixer

State = tuple[jax.Array, dict[str, jax.Array]]
"""The matrices S (b, h, k, v) in float32, and by name the last inputs (b, w, ...) that next tokens read."""


class StateMixer(Mixer, kw_only=True):  # type: ignore[call-arg]
    """A recurrence `advance` of S (k, v) in each of `num_heads` heads, with keys of width `head_dim`.

    Causal whatever the mask says. S is 0 before each document. There is no position encoding.
    """

    num_heads: int
    head_dim: int
    use_bias: bool = False
    norm_epsilon: float = 1e-6
    output_scale: float = 1.0

    @property
    def value_width(self) -> int:
        """The width v of the values of a head."""
        return self.head_dim

    @property
    def linear(self) -> functools.partial:
        """A projection, with biases if all have them."""
        return functools.partial(Linear, use_bias=self.use_bias, dtype=self.dtype)

    def per_head(self, name: str, x_btd: jax.Array) -> jax.Array:
        """A number of each head, (b, t, h), float32."""
        return self.linear((self.num_heads,), ("embed", "heads"), name=name)(x_btd).astype(jnp.float32)

    def projected(
        self,
        name: str,
        x_btd: jax.Array,
        width: int,
        through: tuple[str | None, int] | None = None,
        activation: Callable = lambda x: x,
    ) -> jax.Array:
        """W x, (b, t, h, width), float32; `through` an axis of that name and size it is U activation(V x)."""
        if through:
            down = self.linear((through[1],), ("embed", through[0]), name=f"{name}_down")
            x_btd = activation(down(x_btd))
        axes = through[0] if through else "embed", "heads", "head_dim"
        return self.linear((self.num_heads, width), axes, name=name)(x_btd).astype(jnp.float32)

    def join(self, out_bthv: jax.Array, width: int) -> jax.Array:
        """W^O, from the heads' outputs (b, t, h, v) to (b, t, width)."""
        names, scale = ("heads", "head_dim", "embed"), self.output_scale
        output = self.linear((width,), names, axis=2, init_scale=scale, name="output")
        return output(out_bthv.astype(self.dtype))

    def vector(self, name: str, init: Any, sizes: tuple[int, ...], names: tuple[str, ...]) -> jax.Array:
        """A learned array that multiplies no matrix."""
        return self.param(name, nn.with_logical_partitioning(init, names), sizes, jnp.float32)

    def empty_matrices(self, rows: int) -> jax.Array:
        """S = 0 for each row and head."""
        return jnp.zeros((rows, self.num_heads, self.head_dim, self.value_width), jnp.float32)


def unit(x_bthk: jax.Array) -> jax.Array:
    """x / |x| in each head."""
    return x_bthk * jax.lax.rsqrt(jnp.sum(jnp.square(x_bthk), axis=-1, keepdims=True) + 1e-6)
