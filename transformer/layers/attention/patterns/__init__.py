"""Sparse attention patterns, functions of the indices of query and key: each one file.

A kernel computes a pattern as a sum of disjoint parts. A part is a simpler pattern in a view of the sequence:
a strided pattern is a window, and full attention among the tokens whose indices have the same residue.
"""

from collections.abc import Callable

from transformer.layers.attention.patterns.base import Bounds, Part, Pattern
from transformer.layers.attention.patterns.blocks import Blocks
from transformer.layers.attention.patterns.fixed import Fixed
from transformer.layers.attention.patterns.global_tokens import Global
from transformer.layers.attention.patterns.strided import Strided
from transformer.layers.attention.patterns.window import Window

PATTERNS: dict[str, Callable[[int, int], Pattern] | None] = {
    "full": None,
    "window": Window,
    "strided": lambda size, extra: Strided(size),
    "fixed": Fixed,
    "global": Global,
    "blocks": Blocks,
}
"""Value of `model.pattern` -> constructor, called with `pattern_size` and `pattern_extra`."""

__all__ = ["PATTERNS", "Blocks", "Bounds", "Fixed", "Global", "Part", "Pattern", "Strided", "Window"]
