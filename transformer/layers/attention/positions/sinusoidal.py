"""Sinusoidal positions, added to the embeddings."""

import jax
import jax.numpy as jnp

from transformer.layers.attention.positions.base import Position


def sinusoid(positions_bt: jax.Array, width: int, base: float = 10000.0) -> jax.Array:
    """Sinusoidal encodings of positions, (b, t, width) float32:

    PE(pos, 2i) = sin(pos / base^(2i / width)),  PE(pos, 2i + 1) = cos(pos / base^(2i / width));

    wavelengths run from 2 pi to base * 2 pi. Source: Vaswani et al. 2017, section 3.5.
    """
    frequency = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = positions_bt[..., None].astype(jnp.float32) * frequency
    table = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return table.reshape(*positions_bt.shape, -1)[..., :width]


class Sinusoidal(Position):
    """x + c PE(pos), without parameters (see `sinusoid`); PE has RMS sqrt(1/2), and c = rms, or 1 if rms is
    0, as in Vaswani et al. 2017, section 3.5."""

    base: float = 10000.0
    rms: float = 0.0

    def embed(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Adds the encodings."""
        table_btd = sinusoid(positions_bt, x_btd.shape[-1], self.base) * (self.rms or 1.0)
        return x_btd + table_btd.astype(x_btd.dtype)


class SinusoidalHalves(Position):
    """`Sinusoidal` with all sines before all cosines, as in Marian (Junczys-Dowmunt et al. 2018)."""

    base: float = 10000.0
    rms: float = 0.0

    def embed(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Adds the encodings."""
        table_btd = sinusoid(positions_bt, x_btd.shape[-1], self.base) * (self.rms or 1.0)
        table_btd = jnp.concatenate([table_btd[..., ::2], table_btd[..., 1::2]], axis=-1)
        return x_btd + table_btd.astype(x_btd.dtype)
