"""What a data set is: records by number, and a name that changes whenever they do."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer.errors import UserError

SPLITS = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""The share of a data set that each split takes, where the set comes without splits of its own."""

MANY = 200
"""From this number on, records are divided by hash, so that each stays where it is when others come; fewer
would divide unevenly."""

OF = " of "
"""Between a split and a source, where another source than the config's is meant: "test of tsv:/my.tsv"."""

PIECE = 1 << 20
"""Text is handed out in pieces that end with the first line from here on (in characters; in bytes, where it
comes from a file), or at twice this where no line ends before."""


@dataclass(frozen=True)
class Options:
    """What a source may want to know besides its own argument: where the text is in a record (`field`), what
    one document of plain text is, whether a set without splits is to be divided into them (or every split is
    the whole), whether a number there is taken as its text, all the fields that are read of the same records
    by several sources (`fields`; (): the one alone), whether the text may be a list of texts, of which the
    first counts (`lists`), and the folder for what has to be prepared.

    Records that are alike in the fields `split_by` come into the same split; where there are none, in those
    that `reads` names, what a model is to read of a record; and without both, in all."""

    folder: Path
    field: str = "text"
    document: str = "file"
    divide: bool = True
    numbers: bool = False
    fields: Sequence[str] = ()
    reads: Sequence[str] = ()
    split_by: Sequence[str] = ()
    lists: bool = False

    @property
    def asked(self) -> Sequence[str]:
        """Every field that is read of a record, by this source or by others of the same file."""
        return self.fields or (self.field,)

    @property
    def key(self) -> Sequence[str]:
        """The fields by which records are divided; none: all."""
        return self.split_by or self.reads


class Source(ABC):
    """Records (`{"text": ..., ...}`) by number. `content` is what a run keeps, to find out when it goes on
    whether they are the same, wherever they lie. `identity` changes whenever a record does, and is known
    without reading them; `name` is for messages; `field` is where the text is."""

    identity: str
    name: str
    field: str = "text"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @property
    def content(self) -> dict[str, Any]:
        """Name -> what the records are made of, as JSON has it (see `transformer.data.content_digests`)."""
        return {self.name: self.identity}

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

    def alternatives(self, index: int) -> list[str]:
        """The text of one record, and others that might stand in its place."""
        return [self.text(index)]

    def texts(self) -> Iterator[str]:
        """All the text in order, in pieces; memory does not grow with it.

        Raises:
          UserError: there is none.
        """
        if not len(self):
            raise UserError(f"{self.name}: no text; give data.validation_source, or more text")
        for index in range(len(self)):
            yield from self.pieces(index)


def part_of(split: str) -> tuple[str, str]:
    """The split and the source that "test of tsv:/my.tsv" names; "" for the source where a split alone is
    named, and the config's own is meant."""
    name, _, source = split.partition(OF)
    return name, source


def share(key: bytes) -> float:
    """A number in [0, 1) that depends on the key alone: in which split's part it falls decides."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48


def falls_in(split: str, key: bytes) -> bool:
    """Whether the record that `key` stands for belongs to the split."""
    low, high = SPLITS[split]
    return low <= share(key) < high


def belong(split: str, keys: Iterable[bytes]) -> np.ndarray:
    """Which of the records (n,) belong to the split, by the key of each; those of one key stay together.

    With `MANY` records or more the hash of the key decides. Fewer are divided by position, as if those of one
    key followed the first of them.
    """
    low, high = SPLITS[split]
    shares_n = np.fromiter(map(share, keys), float)
    n = len(shares_n)
    if n >= MANY:
        return (low <= shares_n) & (shares_n < high)
    _, first_k, of_key, count_k = np.unique(
        shares_n, return_index=True, return_inverse=True, return_counts=True
    )
    order_k = np.argsort(first_k)
    starts_k = np.zeros(len(first_k), int)
    starts_k[order_k] = np.cumsum(count_k[order_k]) - count_k[order_k]
    places_n = starts_k[of_key]
    return (int(low * n) <= places_n) & (places_n < int(high * n))


def key_of(record: Mapping[str, Any], names: Sequence[str], place: str) -> bytes:
    """What a record has in these fields; `place` says where it is from.

    Raises:
      UserError: it lacks one of them.
    """
    for name in names:
        if name not in record:
            raise UserError(f"{place}: no field {name!r} to divide by; fields there: {', '.join(record)}")
    values = (record[name] for name in names)
    texts = (value if isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values)
    return "\0".join(text.strip() for text in texts).encode("utf-8", "surrogatepass")
