"""Sparse patterns: which keys a query may see, by nothing but where the two stand."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from transformer.errors import UserError

Indices = Any
"""An array of indices, of JAX or of NumPy."""


class Pattern(Protocol):
    """True where a query at index i may see the key at index j, of arrays that broadcast.

    It is a value that can be hashed, and works on NumPy's arrays too: kernels ask it, before anything is
    compiled, which blocks need no work at all. `relative` says that i - j is all that it looks at.
    """

    relative: ClassVar[bool]

    @property
    def reach(self) -> int | None:
        """How many keys back, its own the first, a query sees; None: there is no end to it."""
        return None

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """(..., t, 1) and (..., 1, s) indices -> (..., t, s)."""
        ...


@dataclass(frozen=True)
class Window(Pattern):
    """The `size` nearest keys on either side, itself the first of them: |i - j| < size.

    With `dilation` n every n-th key is seen, of a window n times as wide. `size` keys back are exactly what a
    causal mask leaves of it. Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """

    relative: ClassVar[bool] = True
    size: int
    dilation: int = 1

    def __post_init__(self) -> None:
        _positive(self)

    @property
    def reach(self) -> int:
        """To the last key of the window."""
        return (self.size - 1) * self.dilation + 1

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Near, and a multiple of `dilation` away."""
        return (abs(i - j) < self.size * self.dilation) & ((i - j) % self.dilation == 0)


@dataclass(frozen=True)
class Strided(Pattern):
    """The last `stride` keys, and every stride-th before them: |i - j| < stride or (i - j) mod stride = 0.

    Source: Child et al. 2019 (Sparse Transformer), section 4.2, both heads' sets in one.
    """

    relative: ClassVar[bool] = True
    stride: int

    def __post_init__(self) -> None:
        _positive(self)

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Near, or in the same column of rows of `stride`."""
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
        """In the same block, or among those that sum up a block."""
        return (i // self.stride == j // self.stride) | (j % self.stride >= self.stride - self.summary)


@dataclass(frozen=True)
class Global(Pattern):
    """A window, and the first `tokens` of the row, which see and are seen by all.

    Source: Beltagy et al. 2020 (Longformer), section 3.1; under a causal mask the window with attention sinks
    of Xiao et al. 2024 (StreamingLLM), section 3.2.
    """

    relative: ClassVar[bool] = False
    size: int
    tokens: int = 1

    def __post_init__(self) -> None:
        _positive(self)

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Near, or one of the two among the first."""
        return (abs(i - j) < self.size) | (j < self.tokens) | (i < self.tokens)


@dataclass(frozen=True)
class Blocks(Pattern):
    """Of blocks of `size` each sees itself, its neighbours, the first, and `drawn` others, drawn by `seed`.

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
        """In blocks that see one another."""
        a, b = i // self.size, j // self.size
        seen = (abs(a - b) <= 1) | (b == 0) | (a == 0)
        for n in range(self.drawn):
            seen = seen | (b == self._drawn(a, n))
        return seen

    def _drawn(self, a: Indices, n: int) -> Indices:
        # A multiplicative hash rather than a generator: it is the same function of arrays of either library.
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
"""By the name a config gives, of its `pattern_size` and `pattern_extra`; of the full one there is none."""
