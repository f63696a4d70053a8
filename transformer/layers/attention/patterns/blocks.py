"""Blocks of tokens, connected at random."""

from dataclasses import dataclass, replace
from typing import ClassVar

from transformer.errors import UserError
from transformer.layers.attention.patterns.base import Bounds, Indices, Part, Pattern
from transformer.layers.attention.views import Aligned


@dataclass(frozen=True)
class Blocks(Pattern):
    """Blocks of `size` tokens attend to themselves, neighbouring blocks, the first one, `drawn` random ones
    among those before them, and those that drew them: the relation is symmetric, also for encoders.

    The draws are the same for all lengths. All heads and layers have the same ones, or with `per_head` others
    for each key/value head of each layer, as in the paper; its draws are of all blocks of a length.
    Source: Zaheer et al. 2020 (Big Bird), section 2, blocks as in its appendix D.
    """

    relative: ClassVar[bool] = False
    size: int
    drawn: int = 1
    seed: Indices = 0
    per_head: bool = False

    def __post_init__(self) -> None:
        if self.size < 1 or self.drawn < 0:
            raise UserError(f"blocks of size {self.size}, drawn {self.drawn}; expected at least 1 and 0")

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Whether the blocks of query and key are connected."""
        a, b = i // self.size, j // self.size
        seen = (abs(a - b) <= 1) | (b == 0) | (a == 0)
        for n in range(self.drawn):
            seen = seen | (b == self._drawn(a, n)) | (a == self._drawn(b, n))
        return seen

    @property
    def grain(self) -> int:
        """The size of a block."""
        return self.size

    @property
    def draws(self) -> bool:
        """Whether heads and layers have other blocks."""
        return self.per_head and self.drawn > 0

    def seeded(self, seed: Indices) -> Pattern:
        """These blocks, with others drawn."""
        return replace(self, seed=seed)

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the blocks at the bounds are connected; unknown for bounds that are further apart."""
        seen = (i[1] - i[0] >= self.size) | (j[1] - j[0] >= self.size)
        for a in i:
            for b in j:
                seen = seen | self(a, b)
        return seen

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """All of it, with the blocks of documents in place."""
        return (Part(self, causal, Aligned(self.size)),)

    def _drawn(self, a: Indices, n: int) -> Indices:
        # A multiplicative hash instead of a generator: the same function for JAX and NumPy arrays. The factor
        # depends on the seed, or two seeds would draw blocks at the same distance everywhere.
        factor = 40503 + self.seed * 7919 % 9973
        return ((a * factor + self.seed * 9973 + n * 7919) % 65521) % (abs(a) + 1)
