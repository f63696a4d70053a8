"""Rotary position embeddings (RoPE): queries and keys are rotated by angles proportional to the position."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer.layers.attention.positions.base import Position


def unscaled(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """base^(-2i / k), i = 0 ... k/2 - 1."""
    return base ** (-jnp.arange(half, dtype=jnp.float32) / half), 1.0


def linear(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """All frequencies divided by the factor (position interpolation). Source: Chen et al. 2023, section
    2.3."""
    return unscaled(half, base, factor, length)[0] / factor, 1.0


def ntk(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """The base becomes base * factor^(k / (k - 2)): the highest frequency is kept, the lowest divided by the
    factor.

    Source: Peng et al. 2023 (YaRN), definition 1, after bloc97's "NTK-aware" scaling.
    """
    return unscaled(half, base * factor ** (half / max(half - 1, 1)), factor, length)


def yarn(half: int, base: float, factor: float, length: float, whole: bool = True) -> tuple[jax.Array, float]:
    """Divides frequencies with less than one rotation in the trained length, and keeps those with 32 or more.

    Between them it interpolates linearly in the index of the pair, as in the authors' code, from one of a
    `whole` number to another or (OpenAI 2025, gpt-oss) between. The scores are multiplied by
    (0.1 ln(factor) + 1)^2, their inverse temperature. Source: Peng et al. 2023 (YaRN), sections 3.2 and 3.4.
    """

    def pair_with(turns: float) -> float:
        return half * math.log(length / (2 * math.pi * turns)) / math.log(base)

    down, up, least = (math.floor, math.ceil, 1.0) if whole else (float, float, 1e-3)
    first = max(down(pair_with(32)), 0)
    last = max(min(up(pair_with(1)), 2 * half - 1), first + least)
    divided = jnp.clip((jnp.arange(half) - first) / (last - first), 0, 1)
    frequency, _ = unscaled(half, base, factor, length)
    return frequency * (1 - divided + divided / factor), (0.1 * math.log(factor) + 1) ** 2


def llama3(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """Divides frequencies with less than one rotation in the trained length, and keeps those with 4 or more.

    Between them it interpolates linearly in the number of rotations. Source: Llama Team 2024 (Llama 3), its
    released code for version 3.1.
    """
    frequency, _ = unscaled(half, base, factor, length)
    share = jnp.clip((length * frequency / (2 * math.pi) - 1) / (4 - 1), 0, 1)
    return frequency * (share + (1 - share) / factor), 1.0


SCALINGS: dict[str, Callable[[int, float, float, float], tuple[jax.Array, float]]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "yarn_exact": functools.partial(yarn, whole=False),
    "llama3": llama3,
}
"""Context extension: (k/2, base, factor, trained length) -> frequencies (k/2), and a factor of the scores."""


class Rope(Position):
    """Rotates each pair (x_i, x_{i + k/2}) of a head by the angle pos * base^(-2i / k):

    (a, b) -> (a cos - b sin, a sin + b cos), so that <q_m, k_n> depends only on m - n. It is a rotation with
    every scaling: rotating by m and then by n is rotating by m + n.
    Source: Su et al. 2021 (RoFormer), section 3.2; the pairs are half a head apart, as is common.

    Of a `fraction` below 1 only the first dimensions of a head are rotated, as a head of that width (Black et
    al. 2022, GPT-NeoX-20B, section 2.1.1).

    `scaling`, a key of `SCALINGS`, lowers the frequencies for texts `scaling_factor` (at least 1) times as
    long as those of training. `original_length` is the trained length, for yarn and llama3 (0: `max_length` /
    `scaling_factor`).
    """

    base: float = 10000.0
    max_length: int = 2048
    scaling: str = "none"
    scaling_factor: float = 1.0
    original_length: int = 0
    fraction: float = 1.0

    def rotate(self, x_bthk: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Rotates in float32; the width that is rotated must be even."""
        half = round(x_bthk.shape[-1] * self.fraction) // 2
        angle = positions_bt[:, :, None, None].astype(jnp.float32) * self._scaled(half)[0]
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        a, b, rest = jnp.split(x_bthk.astype(jnp.float32), (half, 2 * half), axis=-1)
        return jnp.concatenate([a * cosine - b * sine, a * sine + b * cosine, rest], -1).astype(x_bthk.dtype)

    @property
    def score_factor(self) -> float:
        """The factor of the scaling, which does not depend on the width."""
        return self._scaled(1)[1]

    def _scaled(self, half: int) -> tuple[jax.Array, float]:
        length = self.original_length or self.max_length / self.scaling_factor
        return SCALINGS[self.scaling](half, self.base, self.scaling_factor, length)
