"""A window, and tokens that all may attend to."""

from dataclasses import dataclass
from typing import ClassVar

from transformer.layers.attention.patterns.base import Bounds, Indices, Part, Pattern, positive
from transformer.layers.attention.patterns.window import Outside, Window
from transformer.layers.attention.views import FirstKeys, FirstQueries


@dataclass(frozen=True)
class Global(Pattern):
    """A window, and the first `tokens` tokens of the row, which attend to all and to which all attend.

    Source: Beltagy et al. 2020 (Longformer), section 3.1; under a causal mask the window with attention sinks
    of Xiao et al. 2024 (StreamingLLM), section 3.2.
    """

    relative: ClassVar[bool] = False
    size: int
    tokens: int = 1

    def __post_init__(self) -> None:
        positive(self)

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Within the window, or query or key is global."""
        return (abs(i - j) < self.size) | (j < self.tokens) | (i < self.tokens)

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the bounds are less than a window apart, or contain a global token."""
        return Window(self.size).touches(i, j) | (j[0] < self.tokens) | (i[0] < self.tokens)

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """The window, and outside of it the global keys and, for all other keys, the global queries."""
        far = Outside(self.size)
        keys = Part(Window(self.size), causal), Part(far, causal, FirstKeys(self.tokens))
        return keys if causal else (*keys, Part(far, causal, FirstQueries(self.tokens)))
