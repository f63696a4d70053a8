"""Position encodings, by the name a config gives: each one file with the hooks that it needs.

"none" is an encoding too (NoPE, Kazemnejad et al. 2023): where queries see only what precedes them, a
decoder can learn to tell positions apart by how much there is to see.
"""

from transformer.layers.positions.alibi import Alibi
from transformer.layers.positions.base import Position
from transformer.layers.positions.learned import Learned
from transformer.layers.positions.relative_sinusoidal import RelativeSinusoidal
from transformer.layers.positions.rope import Rope
from transformer.layers.positions.shaw import Shaw
from transformer.layers.positions.sinusoidal import Sinusoidal, sinusoid
from transformer.layers.positions.t5 import T5

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
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
    "sinusoid",
]
