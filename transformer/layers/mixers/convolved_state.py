"""Queries, keys and values behind short convolutions, for mixers whose state is a matrix for each head."""

import math
from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.mixers.chunked_state import Tokens, advance
from transformer.layers.mixers.state_mixer import State, StateMixer
from transformer.layers.normalization import RMSNorm


class ConvolvedState(StateMixer, kw_only=True):  # type: ignore[call-arg]
    """y_t = W^O finish(S_t^T q_t), by the recurrence of what `tokens` makes of x and

    q, k, v = SiLU(conv(W^Q x)), SiLU(conv(W^K x)), SiLU(conv(W^V x)), or without a convolution the products.

    There are `num_heads` heads of values, of width `value_dim` (0: `head_dim`), and `num_key_heads` of
    queries and keys, of width `head_dim`, each for a group of adjacent heads. Convolutions have `conv_width`
    taps, 1: there are none. 0 is the mixer's own number of both. Convolutions begin with each document.

    Raises:
      UserError: `num_key_heads` does not divide `num_heads`.
    """

    value_dim: int = 0
    num_key_heads: int = 0
    conv_width: int = 0

    own_conv_width: ClassVar[int] = 4
    conv_bias: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % self.key_heads:
            raise UserError(f"num_key_heads: {self.num_key_heads} does not divide num_heads {self.num_heads}")

    @nn.compact
    def __call__(
        self, x_btd: jax.Array, *, positions_bt: jax.Array, cache: State | None = None, **_: Any
    ) -> tuple[jax.Array, State | None]:
        """(b, t, d) -> (b, t, d); with a cache also the state after the last token."""
        state_bhkv, pasts = self.empty_cache(len(x_btd), 0) if cache is None else cache
        streams, tails = {}, {}
        for name, (axes, sizes) in self.streams.items():
            stream = self.linear(sizes, ("embed", *axes), name=name)(x_btd)
            if name in pasts:
                conv = ShortConvolution(axes, self.taps, self.conv_bias, name=f"{name}_convolution")
                stream, tails[name] = conv(stream, positions_bt, pasts[name])
            streams[name] = stream[:, :, None] if len(sizes) == 1 else stream
        q_bthk, k_bthk = (
            jnp.repeat(x.astype(jnp.float32), self.num_heads // self.key_heads, axis=2)
            for x in (streams["query"], streams["key"])
        )
        tokens = self.tokens(x_btd, q_bthk, k_bthk, streams["value"])
        state_bhkv, out_bthv = advance(state_bhkv, tokens, positions_bt)
        out_bthv = self.finish(out_bthv, x_btd, streams["value"])
        return self.join(out_bthv, x_btd.shape[-1]), None if cache is None else (state_bhkv, tails)

    @abstractmethod
    def tokens(self, x_btd: jax.Array, q_bthk: jax.Array, k_bthk: jax.Array, v_bthv: jax.Array) -> Tokens:
        """Inputs of the recurrence."""

    @abstractmethod
    def finish(self, out_bthv: jax.Array, x_btd: jax.Array, v_bthv: jax.Array) -> jax.Array:
        """The outputs of the recurrence, float32, after norm and gate."""

    def empty_cache(self, rows: int, slots: int) -> State:
        """S = 0, and no inputs of convolutions; its size does not depend on `slots`."""
        streams = self.streams.items() if self.taps > 1 else ()
        pasts = {name: jnp.zeros((rows, self.taps - 1, *sizes), self.dtype) for name, (_, sizes) in streams}
        return self.empty_matrices(rows), pasts

    @property
    def streams(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        """Name -> names and sizes of the axes of queries, keys and values. Those of one key head for all have
        no axis of heads, which devices would divide."""
        g, k = self.key_heads, self.head_dim
        heads = ("heads" if g == self.num_heads else "kv_heads", "head_dim"), (g, k)
        keys = (("head_dim",), (k,)) if g == 1 < self.num_heads else heads
        values = ("heads", "head_dim"), (self.num_heads, self.value_width)
        return {"query": keys, "key": keys, "value": values}

    @property
    def taps(self) -> int:
        """The number of taps of a convolution."""
        return self.conv_width or self.own_conv_width

    @property
    def key_heads(self) -> int:
        """The number of heads of queries and keys."""
        return self.num_key_heads or self.num_heads

    @property
    def value_width(self) -> int:
        """The width v of the values of a head."""
        return self.value_dim or self.head_dim

    def output_norm(self, out_bthv: jax.Array) -> jax.Array:
        """RMSNorm over the last axis."""
        return RMSNorm(self.norm_epsilon, name="output_norm")(out_bthv)

    def steps(self, x: jax.Array, *names: str) -> jax.Array:
        """softplus(x + c) with learned c, initially steps from 0.001 to 0.1 (Gu and Dao 2024, Mamba)."""
        sizes = x.shape[x.ndim - len(names) :]
        return jax.nn.softplus(x + self.vector("step_bias", _inverse_steps, sizes, names))

    def rates(self) -> jax.Array:
        """A (h,) > 0, learned, initially from 1 to 16 (Dao and Gu 2024, Mamba-2)."""
        return jnp.exp(self.vector("log_rate", _log_rates, (self.num_heads,), ("heads",)))


class ShortConvolution(nn.Module):
    """y_t = SiLU(sum_(j < w) c_j x_(t-j) + bias) of each channel, over tokens of the document of t.

    Source: Fu et al. 2023 (H3), section 3.1, as the shift; in this form Gu and Dao 2024 (Mamba), figure 3.
    """

    axes: tuple[str, ...]
    width: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, positions_bt: jax.Array, past: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(b, t, ...), after `past` (b, w - 1, ...) -> (b, t, ...) of x's type, and the last w - 1 inputs."""
        init = nn.with_logical_partitioning(
            nn.initializers.normal(math.sqrt(1 / self.width)), ("distances", *self.axes)
        )
        kernel: Any = self.param("kernel", init, (self.width, *x.shape[2:]), jnp.float32)
        t, inputs = x.shape[1], jnp.concatenate([past.astype(x.dtype), x], axis=1)
        position = positions_bt.reshape(*positions_bt.shape, *(1,) * (x.ndim - 2))
        y = jnp.zeros(x.shape, jnp.float32)
        for j in range(self.width):
            first = self.width - 1 - j
            y += kernel[j] * jnp.where(position >= j, inputs[:, first : first + t], 0).astype(jnp.float32)
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes)
            y += self.param("bias", zeros, x.shape[2:], jnp.float32)
        return jax.nn.silu(y).astype(x.dtype), inputs[:, t:]


def _inverse_steps(rng: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    steps = jnp.exp(jax.random.uniform(rng, shape, dtype, math.log(0.001), math.log(0.1)))
    return jnp.log(jnp.expm1(steps))


def _log_rates(rng: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.log(jax.random.uniform(rng, shape, dtype, 1.0, 16.0))
