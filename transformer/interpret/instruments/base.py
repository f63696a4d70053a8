"""`Subject`, what an instrument looks into, and `Table`, what it shows."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import recording


class Table(NamedTuple):
    """Numbers, or a text for each of them, with the names of rows and columns; what they are; and lines that
    stand below."""

    title: str
    values_rc: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    texts: Sequence[Sequence[str]] | None = None
    notes: Sequence[str] = ()

    def lines(self) -> Iterator[str]:
        """The table with its title."""
        cells = self.texts or [[f"{value:.3f}" for value in row] for row in self.values_rc]
        lines = [["", *self.columns], *([name, *row] for name, row in zip(self.rows, cells, strict=True))]
        visible = [[cell if cell == cell.strip() else repr(cell) for cell in line] for line in lines]
        widths = [max(map(len, column)) for column in zip(*visible, strict=True)]
        yield f"{self.title}:"
        for line in visible:
            yield "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        yield from self.notes


class Reading(NamedTuple):
    """A text or an image as a model reads it: `forward(params)` runs the model; the tokens (1, t) of a
    decoder; the names of the t positions; and of images the rows and columns of patches, which are last."""

    forward: Callable[[Any], Any]
    names: Sequence[str]
    tokens_1t: Any = None
    grid: tuple[int, int] | None = None


class Batch(NamedTuple):
    """Values by path, (b, t, ...), of a batch; its tokens (b, t), and which of them are not padding."""

    values: Mapping[str, Any]
    tokens_bt: np.ndarray
    valid_bt: np.ndarray


@dataclasses.dataclass(frozen=True)
class Subject:
    """A trained model, the inputs that flags name, and the data of its run.

    `loss(params, batch)` is {"loss": Sum, ...}, as in training but for dropout; `batches("train")` and
    `batches("validation")` are arrays on the devices, `tokens(batch)` their tokens (b, t) and which of them
    count, and `names` the names of tokens. `options` has the values of flags.
    """

    model: Any
    params: Any
    names: Callable[[Any], list[str]]
    loss: Callable[[Any, Any], Mapping[str, Any]]
    batches: Callable[[str], Iterator[Any]]
    tokens: Callable[[Any], tuple[np.ndarray, np.ndarray]]
    options: Mapping[str, Any]
    longest: int
    between: str  # what stands between the names of tokens in a text
    prompt: Any = None  # a `Reading`, where a flag names one
    against: Any = None

    def compared(self) -> tuple[Reading, Reading]:
        """Both texts. Raises as `check_same_length`."""
        check_same_length(self.prompt.tokens_1t, self.against.tokens_1t)
        return self.prompt, self.against

    def recorded(self, split: str, *patterns: str) -> Iterator[Batch]:
        """The values of all paths that fit a pattern, on the batches of a split; raises as `record`."""
        record = recording(self.loss, *patterns)
        for batch in self.batches(split):
            values = record(self.params, batch)[1]
            yield Batch({path: np.asarray(x) for path, x in values.items()}, *self.tokens(batch))


def check_same_length(clean_1t: Any, corrupted_1t: Any) -> None:
    """Raises `UserError` if the positions of two texts do not correspond."""
    if clean_1t.shape != corrupted_1t.shape:
        lengths = f"{clean_1t.shape[1]} and {corrupted_1t.shape[1]} tokens"
        raise UserError(f"the texts have {lengths}; expected the same number, so that positions correspond")
