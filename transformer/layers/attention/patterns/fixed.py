"""Runs of tokens, and the summary keys of others."""

from dataclasses import dataclass
from typing import ClassVar

from transformer.errors import UserError
from transformer.layers.attention.patterns.base import Bounds, Indices, Part, Pattern, positive
from transformer.layers.attention.views import Ends, Runs


@dataclass(frozen=True)
class Fixed(Pattern):
    """The keys of the query's own block of `stride`, and the last `summary` of every block.

    Source: Child et al. 2019 (Sparse Transformer), section 4.2.
    """

    relative: ClassVar[bool] = False
    stride: int
    summary: int = 1

    def __post_init__(self) -> None:
        positive(self)
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
