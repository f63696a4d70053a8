"""A window, and tokens at regular distances."""

from dataclasses import dataclass
from typing import ClassVar

from transformer.layers.attention.patterns.base import Indices, Part, Pattern, positive
from transformer.layers.attention.patterns.window import Outside, Window
from transformer.layers.attention.views import Residues


@dataclass(frozen=True)
class Strided(Pattern):
    """The last `stride` keys, and every stride-th before them: |i - j| < stride or (i - j) mod stride = 0.

    Source: Child et al. 2019 (Sparse Transformer), section 4.2, the union of both heads' sets.
    """

    relative: ClassVar[bool] = True
    stride: int

    def __post_init__(self) -> None:
        positive(self)

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Within the last `stride` keys, or at a multiple of `stride`."""
        return (abs(i - j) < self.stride) | ((i - j) % self.stride == 0)

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """The window, and the other tokens with the same residue."""
        return Part(Window(self.stride), causal), Part(Outside(1), causal, Residues(self.stride))
