"""The base class of sparse attention patterns, and the parts in which kernels compute them."""

from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Protocol

from transformer.errors import UserError
from transformer.layers.attention.views import View

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
    that it is a different one for each seed.
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


def positive(pattern: object) -> None:
    """Raises `UserError` for a field below 1."""
    for field in fields(pattern):  # type: ignore[arg-type]
        if getattr(pattern, field.name) < 1:
            raise UserError(f"{field.name}: {getattr(pattern, field.name)}; expected at least 1")
