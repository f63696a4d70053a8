"""The base class of data sets, `Source`, and how records are split."""

import hashlib
import json
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer.errors import UserError, brief

SPLITS = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""The interval in [0, 1) of each split, for data sets without splits."""

MIN_HASHED_RECORDS = 200
"""From this number on, records are split by hash, so that a record stays in its split when others are added;
fewer would be split unevenly."""

PLACE = "place"
"""The value of `data.split_by` that divides lines by their order."""

OF = " of "
"""The separator of a split and another source than that of the config: "test of tsv:/my.tsv"."""

PIECE = 1 << 20
"""Text is read in pieces that end with the first line end after this length (in characters, or bytes of a
file), or at twice this length if there is none."""


@dataclass(frozen=True)
class Options:
    """Options of a source: the `folder` of prepared data; the `field` of the text; the unit of a `document`
    of plain text; whether to `divide` data without splits (otherwise every split is the whole); whether
    `numbers` are read as text; all `fields` that several sources read of the same records ((): only `field`);
    whether the text may be in `lists` of alternatives, of which the first is read; whether the value may also
    be one of JSON's `structures`, a list or an object, which `Source.value` gives; the fields `unread` of
    which a record may have none, because they change what the others mean; the fields that are `optional`,
    whose null is the empty text.

    Records equal in the fields `split_by`, or without these in what a model reads as their condition (the
    fields `reads`, and of messages those before the first answer), or without both in all fields, are in one
    split. `split_by` `PLACE` divides lines by their order instead."""

    folder: Path
    field: str = "text"
    document: str = "file"
    divide: bool = True
    numbers: bool = False
    fields: Sequence[str] = ()
    reads: Sequence[str] = ()
    split_by: Sequence[str] = ()
    lists: bool = False
    structures: bool = False
    unread: Sequence[str] = ()
    optional: Sequence[str] = ()

    @property
    def asked(self) -> Sequence[str]:
        """All fields that are read of a record, by this source or by others of the same file."""
        return self.fields or (self.field,)

    @property
    def key(self) -> Sequence[str]:
        """The fields by which records are split; (): all."""
        return self.split_by or self.reads

    @property
    def by_place(self) -> bool:
        """Whether lines are split by their order."""
        return [*self.split_by] == [PLACE]

    @property
    def rule(self) -> list[str]:
        """The rule by which records are split, as a part of the identity of what is."""
        return ["by", *self.key, *([] if self.split_by else ["condition"])]

    def deciding(self, value: Any) -> Any:
        """The part of a value of a field of `key` that decides the split of its record."""
        return value if self.split_by else before_answer(value)

    def as_text(self, value: Any) -> Any:
        """A number, a list or null as text, where these options say how; else the value itself."""
        if value is None and self.field in self.optional:
            return ""
        if self.numbers and isinstance(value, int | float):
            return json.dumps(value)
        if (texts := self.alternatives(value)) is not None:
            return texts[0] if texts else ""
        return value

    def is_read(self, value: Any) -> bool:
        """Whether a value is text, or what these options also read."""
        return isinstance(value, str) or (self.structures and isinstance(value, list | dict))

    def check_unread(self, record: Mapping[str, Any], place: Callable[[], str]) -> None:
        """Raises `UserError` if the record at this place has something in a field of `unread`."""
        if there := [name for name in self.unread if record.get(name) not in (None, "", "[]", [], {})]:
            what = f"{there[0]!r} is {brief(repr(record[there[0]]), 60)}, which is not read"
            raise UserError(f"{place()}: {what}; write it into the messages, or leave it out")

    def alternatives(self, value: Any) -> list[str] | None:
        """The texts of a list that are not only white space; None if the value is not such a list, or `lists`
        are not asked for."""
        if not self.lists or not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            return None
        return [each for each in value if each.strip()]


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


def tallied(count: int, others: Mapping[str, int], what: str = "read") -> dict[str, int]:
    """A tally: what -> how many records are read or packed, and of `others` those counts that are not 0."""
    return {what: count} | {name: int(number) for name, number in others.items() if number}


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


def shares(keys: Iterable[bytes]) -> np.ndarray:
    """The `share` (n,) of each key."""
    digests, new = bytearray(), hashlib.blake2b(digest_size=6).copy  # a copy takes 3/4 of the time
    for key in keys:
        (hashed := new()).update(key)
        digests += hashed.digest()
    digits_n3 = np.frombuffer(digests, ">u2").reshape(-1, 3)
    return digits_n3 @ 65536.0 ** -np.arange(1, 4)  # exact: 48 bits of the 53 of a float


def belong(split: str, shares_n: np.ndarray) -> np.ndarray:
    """Which records (n,) are in the split, by the `shares` of their keys; records with the same key are in
    one split.

    `MIN_HASHED_RECORDS` or more are split by a hash of the key. Fewer are split by position, as if those with
    the same key followed the first of them.
    """
    low, high = SPLITS[split]
    n = len(shares_n)
    if n >= MIN_HASHED_RECORDS:
        return (low <= shares_n) & (shares_n < high)
    _, first_k, of_key, count_k = np.unique(
        shares_n, return_index=True, return_inverse=True, return_counts=True
    )
    order_k = np.argsort(first_k)
    starts_k = np.zeros(len(first_k), int)
    starts_k[order_k] = np.cumsum(count_k[order_k]) - count_k[order_k]
    places_n = starts_k[of_key]
    return (int(low * n) <= places_n) & (places_n < int(high * n))


def before_answer(value: Any) -> Any:
    """Of a list of messages the role and the text of those before the first answer to a user; any other value
    as it is."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return value
    said = [(each.get("role") or each.get("from"), each.get("content", each.get("value"))) for each in value]
    asked = next((i for i, (role, _) in enumerate(said) if role in ("user", "human")), len(said))
    answers = (i for i, (role, _) in enumerate(said) if i > asked and role in ("assistant", "gpt"))
    return said[: next(answers, len(said))]


WRITE = json.JSONEncoder(sort_keys=True, default=str).encode  # a column may also have times


def key_of(
    record: Mapping[str, Any],
    names: Sequence[str],
    place: Callable[[], str],
    deciding: Callable[[Any], Any] = lambda value: value,
) -> bytes:
    """The key of a record by what is `deciding` of these fields; `place` gives its location, for messages.

    Raises:
      UserError: a field is missing.
    """
    try:
        (key,) = keys_of([[record[name]] for name in names], deciding)
    except KeyError as error:
        there = ", ".join(record)
        raise UserError(f"{place()}: no field {error} to split by; fields there: {there}") from None
    return key


def keys_of(
    columns: Sequence[Sequence[Any]], deciding: Callable[[Any], Any] = lambda value: value
) -> list[bytes]:
    """The keys of records by what is `deciding` of the values of their fields, of which each is a column;
    text decides as it is."""
    texts = [
        [(value if isinstance(value, str) else WRITE(deciding(value))).strip() for value in column]
        for column in columns
    ]
    keys = texts[0] if len(texts) == 1 else [*map("\0".join, zip(*texts, strict=True))]
    try:
        return [*map(str.encode, keys)]
    except UnicodeEncodeError:  # half of a surrogate pair
        return [key.encode("utf-8", "surrogatepass") for key in keys]
