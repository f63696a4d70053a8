"""Windows, with gaps or without, and what they leave out."""

from dataclasses import dataclass
from typing import ClassVar

from transformer.layers.attention.patterns.base import Bounds, Indices, Part, Pattern, positive
from transformer.layers.attention.views import Residues


@dataclass(frozen=True)
class Window(Pattern):
    """A window of `size` keys on either side, including the query's own: |i - j| < size.

    With `dilation` n it has every n-th key of a window n times as wide. With a causal mask these are the last
    `size` keys. Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """

    relative: ClassVar[bool] = True
    size: int
    dilation: int = 1

    def __post_init__(self) -> None:
        positive(self)

    @property
    def reach(self) -> int:
        """The width of the window to one side."""
        return (self.size - 1) * self.dilation + 1

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Within the window, at a multiple of `dilation`."""
        return (abs(i - j) < self.size * self.dilation) & ((i - j) % self.dilation == 0)

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the bounds are less than a window apart."""
        return (j[0] - i[1] < self.size * self.dilation) & (i[0] - j[1] < self.size * self.dilation)

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """A window over the tokens with the same residue."""
        if self.dilation == 1:
            return (Part(self, causal),)
        return (Part(Window(self.size), causal, Residues(self.dilation)),)


@dataclass(frozen=True)
class Outside(Pattern):
    """The complement of a window of `size`: |i - j| >= size."""

    relative: ClassVar[bool] = True
    size: int

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Not within the window."""
        return abs(i - j) >= self.size

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the farthest indices are outside."""
        return (i[1] - j[0] >= self.size) | (j[1] - i[0] >= self.size)
