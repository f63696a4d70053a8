"""What a data set is: records by number, and a name that changes whenever they do."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.errors import UserError

SPLITS = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""The share of a data set that each split takes, where the set comes without splits of its own."""

PIECE = 1 << 20
"""Text is handed out in pieces that end with the first line from here on (in characters; in bytes, where it
comes from a file), or at twice this where no line ends before."""


@dataclass(frozen=True)
class Options:
    """What a source may want to know besides its own argument: where the text is in a record (`field`), what
    one document of plain text is, whether a set without splits is to be divided into them (or every split is
    the whole), whether a number there is taken as its text, all the fields that are read of the same records
    by several sources (`fields`; (): the one alone), and the folder for what has to be prepared."""

    folder: Path
    field: str = "text"
    document: str = "file"
    divide: bool = True
    numbers: bool = False
    fields: tuple[str, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """Every field that is read of a record, by this source or by others of the same file."""
        return self.fields or (self.field,)


class Source(ABC):
    """Records (`{"text": ..., ...}`) by number. `identity` changes whenever a record does, and is known
    without reading them; `name` is for messages; `field` is where the text is."""

    identity: str
    name: str
    field: str = "text"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def place(self, index: int) -> str:
        """Where a record stands, for messages."""
        return f"{self.name}: record {index + 1}"

    def pieces(self, index: int) -> Iterator[str]:
        """The text of one record in order, at least one piece, long texts cut at ends of lines."""
        text = self[index][self.field]
        start = 0
        while len(text) - start > PIECE:
            end = text.find("\n", start + PIECE, start + 2 * PIECE) + 1 or start + 2 * PIECE
            yield text[start:end]
            start = end
        if start < len(text) or not text:
            yield text[start:]

    def text(self, index: int) -> str:
        """The text of one record."""
        return "".join(self.pieces(index))

    def texts(self) -> Iterator[str]:
        """All the text in order, in pieces; memory does not grow with it.

        Raises:
          UserError: there is none.
        """
        if not len(self):
            raise UserError(f"{self.name}: no text; give data.validation_source, or more text")
        for index in range(len(self)):
            yield from self.pieces(index)


def share(key: bytes) -> float:
    """A number in [0, 1) that depends on the key alone: in which split's part it falls decides."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48


def falls_in(split: str, key: bytes) -> bool:
    """Whether the record that `key` stands for belongs to the split."""
    low, high = SPLITS[split]
    return low <= share(key) < high
