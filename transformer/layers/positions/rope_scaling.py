"""How rotary positions reach further than the texts they were trained on.

Each is a function of half the head width, the base, the factor and the trained length, and gives the
frequencies (k/2), and by what both queries and keys are stretched.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp


def none(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """base^(-2i / k), i = 0 ... k/2 - 1."""
    return base ** (-jnp.arange(half, dtype=jnp.float32) / half), 1.0


def linear(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """Every frequency divided by the factor, as if positions were. Source: Chen et al. 2023, section 2.3."""
    return none(half, base, factor, length)[0] / factor, 1.0


def ntk(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """The base becomes base * factor^(k / (k - 2)): the highest frequency stays, the lowest is divided.

    Source: Peng et al. 2023 (YaRN), definition 1, after bloc97's "NTK-aware" scaling.
    """
    return none(half, base * factor ** (half / max(half - 1, 1)), factor, length)


def yarn(half: int, base: float, factor: float, length: float) -> tuple[jax.Array, float]:
    """Divides what turns less than once in the trained length, keeps what turns 32 times or more,

    and blends in between, linearly in the pair's index as the authors' code does. The scores' temperature t
    makes up for attention spread over more keys: sqrt(1/t) = 0.1 ln(factor) + 1 stretches queries and keys.
    Source: Peng et al. 2023 (YaRN), sections 3.2 and 3.4.
    """

    def pair_with(turns: float) -> float:
        return half * math.log(length / (2 * math.pi * turns)) / math.log(base)

    first = max(math.floor(pair_with(32)), 0)
    last = max(min(math.ceil(pair_with(1)), 2 * half - 1), first + 1)
    divided = jnp.clip((jnp.arange(half) - first) / (last - first), 0, 1)
    frequency, _ = none(half, base, factor, length)
    return frequency * (1 - divided + divided / factor), 0.1 * math.log(factor) + 1


SCALINGS: dict[str, Callable[[int, float, float, float], tuple[jax.Array, float]]] = {
    "none": none,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
}
