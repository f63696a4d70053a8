"""Sparse attention patterns, functions of the indices of query and key."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from transformer.errors import UserError

Indices = Any
"""An array of indices, a JAX or NumPy array."""


class Pattern(Protocol):
    """True where a query at index i may attend to the key at index j; the arrays broadcast.

    A pattern is hashable and also works on NumPy arrays: kernels find the blocks to skip before compilation.
    `relative` says that it depends only on i - j.
    """

    relative: ClassVar[bool]

    @property
    def reach(self) -> int | None:
        """The number of last keys, including its own, that a causal query may attend to; None: unbounded."""
        return None

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """(..., t, 1) and (..., 1, s) indices -> (..., t, s)."""
        ...


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
        _positive(self)

    @property
    def reach(self) -> int:
        """The width of the window to one side."""
        return (self.size - 1) * self.dilation + 1

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Within the window, at a multiple of `dilation`."""
        return (abs(i - j) < self.size * self.dilation) & ((i - j) % self.dilation == 0)


@dataclass(frozen=True)
class Strided(Pattern):
    """The last `stride` keys, and every stride-th before them: |i - j| < stride or (i - j) mod stride = 0.

    Source: Child et al. 2019 (Sparse Transformer), section 4.2, the union of both heads' sets.
    """

    relative: ClassVar[bool] = True
    stride: int

    def __post_init__(self) -> None:
        _positive(self)

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Within the last `stride` keys, or at a multiple of `stride`."""
        return (abs(i - j) < self.stride) | ((i - j) % self.stride == 0)


@dataclass(frozen=True)
class Fixed(Pattern):
    """The keys of the query's own block of `stride`, and the last `summary` of every block.

    Source: Child et al. 2019 (Sparse Transformer), section 4.2.
    """

    relative: ClassVar[bool] = False
    stride: int
    summary: int = 1

    def __post_init__(self) -> None:
        _positive(self)
        if self.summary > self.stride:
            raise UserError(
                f"summary: {self.summary} keys of every {self.stride}; expected at most all of them"
            )

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """In the same block, or a summary key."""
        return (i // self.stride == j // self.stride) | (j % self.stride >= self.stride - self.summary)


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
        _positive(self)

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Within the window, or query or key is global."""
        return (abs(i - j) < self.size) | (j < self.tokens) | (i < self.tokens)


@dataclass(frozen=True)
class Blocks(Pattern):
    """Blocks of `size` tokens attend to themselves, neighbouring blocks, the first one, and `drawn` random
    ones.

    Source: Zaheer et al. 2020 (Big Bird), section 2, blocks as in its appendix D.
    """

    relative: ClassVar[bool] = False
    size: int
    drawn: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.drawn < 0:
            raise UserError(f"blocks of size {self.size}, drawn {self.drawn}; expected at least 1 and 0")

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Whether the blocks of query and key are connected."""
        a, b = i // self.size, j // self.size
        seen = (abs(a - b) <= 1) | (b == 0) | (a == 0)
        for n in range(self.drawn):
            seen = seen | (b == self._drawn(a, n))
        return seen

    def _drawn(self, a: Indices, n: int) -> Indices:
        # A multiplicative hash instead of a generator: the same function for JAX and NumPy arrays.
        return ((a * 40503 + self.seed * 9973 + n * 7919) % 65521) % (abs(a) + 1)


def _positive(pattern: object) -> None:
    for field in fields(pattern):  # type: ignore[arg-type]
        if getattr(pattern, field.name) < 1:
            raise UserError(f"{field.name}: {getattr(pattern, field.name)}; expected at least 1")


PATTERNS: dict[str, Callable[[int, int], Pattern] | None] = {
    "full": None,
    "window": Window,
    "strided": lambda size, extra: Strided(size),
    "fixed": Fixed,
    "global": Global,
    "blocks": Blocks,
}
"""Value of `model.pattern` -> constructor, called with `pattern_size` and `pattern_extra`."""
