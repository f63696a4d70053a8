"""Position encodings, by the name a config gives: each one file with one of the three hooks."""

from transformer.layers.positions.base import Position
from transformer.layers.positions.learned import Learned
from transformer.layers.positions.rope import Rope
from transformer.layers.positions.sinusoidal import Sinusoidal, sinusoid

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
}

__all__ = ["POSITIONS", "Learned", "Position", "Rope", "Sinusoidal", "sinusoid"]
