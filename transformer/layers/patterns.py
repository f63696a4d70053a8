"""Sparse attention patterns, functions of the indices of query and key.

A kernel computes a pattern as a sum of disjoint parts. A part is a simpler pattern in a view of the sequence:
a strided pattern is a window, and full attention among the tokens whose indices have the same residue.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol

from transformer.errors import UserError
from transformer.layers.views import Aligned, Ends, FirstKeys, FirstQueries, Residues, Runs, View

Indices = Any
"""An array of indices, a JAX or NumPy array."""

Bounds = tuple[Indices, Indices]
"""The lowest and the highest index of a block of queries or keys."""


class Part(NamedTuple):
    """The pairs that `pattern` (None: all) and `causal` allow in a view, with the indices of the view.

    `of_positions` is the pattern of these pairs by their positions; None: the same.
    """

    pattern: "Pattern | None"
    causal: bool
    view: View = View()
    of_positions: "Pattern | None" = None


class Pattern(Protocol):
    """True where a query at index i may attend to the key at index j; the arrays broadcast.

    A pattern is hashable and also works on NumPy arrays: kernels find the blocks to skip before compilation.
    `relative` says that it depends only on i - j; `grain`, that it consists of blocks of this size; `draws`,
    that it is another one for each seed.
    """

    relative: ClassVar[bool]

    @property
    def grain(self) -> int:
        """1: no blocks."""
        return 1

    @property
    def draws(self) -> bool:
        """Nothing is drawn."""
        return False

    def seeded(self, seed: Indices) -> "Pattern":
        """The pattern for a seed, which may be known only at run time."""
        return self

    @property
    def reach(self) -> int | None:
        """The number of last keys, including its own, that a causal query may attend to; None: unbounded."""
        return None

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """(..., t, 1) and (..., 1, s) indices -> (..., t, s)."""
        ...

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether any query with an index within the bounds i may attend to any key with one within j: the
        test that skips blocks. True also where that is unknown."""
        return (i[0] == i[0]) | (j[0] == j[0])

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """Disjoint parts whose union is this pattern."""
        return (Part(self, causal),)


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

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the bounds are less than a window apart."""
        return (j[0] - i[1] < self.size * self.dilation) & (i[0] - j[1] < self.size * self.dilation)

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """A window over the tokens with the same residue."""
        if self.dilation == 1:
            return (Part(self, causal),)
        return (Part(Window(self.size), causal, Residues(self.dilation)),)


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

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """The window, and the other tokens with the same residue."""
        return Part(Window(self.stride), causal), Part(Outside(1), causal, Residues(self.stride))


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

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the bounds have a block in common, or j a summary key."""
        summary = j[0] // self.stride * self.stride + self.stride - self.summary <= j[1]
        return SameRun(self.stride).touches(i, j) | summary

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """Each block, and the summary keys of the other ones."""
        n, m = self.stride, self.summary
        own = Part(SameRun(n), causal, Runs(n))
        return own, Part(OtherRuns(n, m, causal), False, Ends(n, m), OtherRuns(n, n, causal))


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

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the bounds are less than a window apart, or contain a global token."""
        return Window(self.size).touches(i, j) | (j[0] < self.tokens) | (i[0] < self.tokens)

    def parts(self, causal: bool) -> tuple[Part, ...]:
        """The window, and outside of it the global keys and, for all other keys, the global queries."""
        far = Outside(self.size)
        keys = Part(Window(self.size), causal), Part(far, causal, FirstKeys(self.tokens))
        return keys if causal else (*keys, Part(far, causal, FirstQueries(self.tokens)))


@dataclass(frozen=True)
class Blocks(Pattern):
    """Blocks of `size` tokens attend to themselves, neighbouring blocks, the first one, `drawn` random ones
    among those before them, and those that drew them: the relation is symmetric, also for encoders.

    The draws are the same for all lengths. The same ones are for all heads and layers, or with `each` others
    for each key/value head of each layer, as in the paper; its draws are of all blocks of a length.
    Source: Zaheer et al. 2020 (Big Bird), section 2, blocks as in its appendix D.
    """

    relative: ClassVar[bool] = False
    size: int
    drawn: int = 1
    seed: Indices = 0
    each: bool = False

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
        return self.each and self.drawn > 0

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


@dataclass(frozen=True)
class Outside(Pattern):
    """What a window of `size` leaves out: |i - j| >= size."""

    relative: ClassVar[bool] = True
    size: int

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Not within the window."""
        return abs(i - j) >= self.size

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the farthest indices are outside."""
        return (i[1] - j[0] >= self.size) | (j[1] - i[0] >= self.size)


@dataclass(frozen=True)
class SameRun(Pattern):
    """Query and key are in the same run of `size`."""

    relative: ClassVar[bool] = False
    size: int

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Whether the runs are the same."""
        return i // self.size == j // self.size

    @property
    def grain(self) -> int:
        """The size of a run."""
        return self.size

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the bounds have a run in common."""
        return (i[0] // self.size <= j[1] // self.size) & (j[0] // self.size <= i[1] // self.size)


@dataclass(frozen=True)
class OtherRuns(Pattern):
    """For query i of runs of `size`, and key j of those with only `count` keys each: another run, an earlier
    one if `causal`."""

    relative: ClassVar[bool] = False
    size: int
    count: int
    causal: bool

    def __call__(self, i: Indices, j: Indices) -> Indices:
        """Whether the runs differ in the right direction."""
        a, b = i // self.size, j // self.count
        return b < a if self.causal else a != b

    def touches(self, i: Bounds, j: Bounds) -> Indices:
        """Whether the outermost runs differ."""
        earlier = j[0] // self.count < i[1] // self.size
        return earlier if self.causal else earlier | (j[1] // self.count > i[0] // self.size)


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
