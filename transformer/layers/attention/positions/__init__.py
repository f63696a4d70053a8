"""Position encodings by the value of `model.position`, one file each.

"none" is NoPE (Kazemnejad et al. 2023): a causal decoder can learn positions from the number of visible keys.
"""

from transformer.layers.attention.positions.alibi import Alibi
from transformer.layers.attention.positions.base import Position
from transformer.layers.attention.positions.learned import Learned
from transformer.layers.attention.positions.learned_t5 import LearnedT5
from transformer.layers.attention.positions.relative_sinusoidal import RelativeSinusoidal
from transformer.layers.attention.positions.rope import Rope
from transformer.layers.attention.positions.shaw import Shaw
from transformer.layers.attention.positions.sinusoidal import Sinusoidal, SinusoidalHalves, sinusoid
from transformer.layers.attention.positions.t5 import T5

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
    "learned_t5": LearnedT5,
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
