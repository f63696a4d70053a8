"""Position encodings by the value of `model.position`, one file each.

"none" is NoPE (Kazemnejad et al. 2023): a causal decoder can learn positions from the number of visible keys.
"""

from transformer.layers.positions.alibi import Alibi
from transformer.layers.positions.base import Position
from transformer.layers.positions.learned import Learned
from transformer.layers.positions.relative_sinusoidal import RelativeSinusoidal
from transformer.layers.positions.rope import Rope
from transformer.layers.positions.shaw import Shaw
from transformer.layers.positions.sinusoidal import Sinusoidal, SinusoidalHalves, sinusoid
from transformer.layers.positions.t5 import T5

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "sinusoidal_halves": SinusoidalHalves,
    "learned": Learned,
    "rope": Rope,
    "alibi": Alibi,
    "t5": T5,
    "shaw": Shaw,
    "transformer_xl": RelativeSinusoidal,
}

__all__ = [
    "POSITIONS",
    "T5",
    "Alibi",
    "Learned",
    "Position",
    "RelativeSinusoidal",
    "Rope",
    "Shaw",
    "Sinusoidal",
    "SinusoidalHalves",
    "sinusoid",
]
