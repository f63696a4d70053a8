"""The base class of data sets, `Source`, and the splits of those without splits."""

import hashlib
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformer.errors import UserError, brief

SPLITS = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""The interval in [0, 1) of each split, for data sets without splits."""


OF = " of "
"""The separator of a split and another source than that of the config: "test of tsv:/my.tsv"."""

PIECE = 1 << 20
"""Text is read in pieces that end with the first line end after this length (in characters, or bytes of a
file), or at twice this length if there is none."""


class Source(ABC):
    """Records (`{"text": ..., ...}`) by index. `identity` changes when a record does, and is computed without
    reading them; `name` is for messages; `field` is the field of the text. `content` identifies the records
    independent of their location; a run stores it, to compare when it is resumed."""

    identity: str
    name: str
    field: str = "text"
    FIELDS: Sequence[str] = ("text",)
    """The fields of its records, of sources that are the same for everyone."""
    is_files = False
    """Whether these are files of the user, which have no splits."""
    divided_by = ""
    """The field by which records without splits are divided, if `split_by` is not supported."""
    are_apart = False
    """Whether the training and validation splits share nothing that a model is asked."""
    tally: Mapping[str, int] = types.MappingProxyType({})
    """Counts of records read and left out in all splits, as `tallied`; {} if nothing can be left out."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @property
    def content(self) -> dict[str, Any]:
        """Name -> content of the records, as in JSON (see `transformer.data.cache.content_digests`)."""
        return {self.name: self.identity}

    def place(self, index: int) -> str:
        """The location of a record, for messages."""
        return f"{self.name}: record {index + 1}"

    def pieces(self, index: int) -> Iterator[str]:
        """The text of one record in one or more pieces, split at ends of lines.

        Raises:
          UserError: the record has no text in the field.
        """
        record, start = self[index], 0
        if not isinstance(record, Mapping) or not isinstance(text := record.get(self.field), str):
            raise UserError(f"{self.place(index)}: no text in {self.field!r}: {brief(repr(record), 100)}")
        while len(text) - start > PIECE:
            end = text.find("\n", start + PIECE, start + 2 * PIECE) + 1 or start + 2 * PIECE
            yield text[start:end]
            start = end
        yield text[start:]

    def text(self, index: int) -> str:
        """The text of one record."""
        return "".join(self.pieces(index))

    def value(self, index: int) -> Any:
        """The text of one record or, with `Options.structures`, the list or object there."""
        return self[index].get(self.field)

    def alternatives(self, index: int) -> list[str]:
        """The text of one record, and alternatives to it."""
        return [self.text(index)]

    def texts(self) -> Iterator[str]:
        """All the text in order, in pieces, with bounded memory.

        Raises:
          UserError: there is no text.
        """
        if not len(self):
            raise UserError(f"{self.name}: no text; give data.validation_source, or more text")
        for index in range(len(self)):
            yield from self.pieces(index)


KEPT = ("read", "packed", "truncated", "read in several windows", "without the answer in one window")
"""The names by which a tally counts records that are kept; others are reasons why records are left out."""


def tallied(count: int, left_out: Mapping[str, int], label: str = "read") -> dict[str, int]:
    """A tally: label -> how many records are read or packed, and of `left_out` the counts that are not 0."""
    return {label: count} | {name: int(number) for name, number in left_out.items() if number}


def check_text(text: str, place: Callable[[], str], field: str = "") -> None:
    """Raises `UserError` if the text, of this field at this place, cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        where = f" in {field!r}" if field else ""
        raise UserError(f"{place()}: half of a surrogate pair{where}") from None


def split_and_source(split: str) -> tuple[str, str]:
    """The split and the source in "test of tsv:/my.tsv"; the source is "" if only a split of the config's
    source is named."""
    name, _, source = split.partition(OF)
    return name, source


def share(key: bytes) -> float:
    """A hash of the key in [0, 1), which decides the split."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48


def falls_in(split: str, key: bytes) -> bool:
    """Whether the record with this key is in the split."""
    low, high = SPLITS[split]
    return low <= share(key) < high
