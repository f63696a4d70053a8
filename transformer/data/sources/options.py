"""The options of a source: which fields of a record are read, and which of them decide its split."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.errors import UserError, brief

PLACE = "place"
"""The value of `data.split_by` that divides lines by their order."""


@dataclass(frozen=True)
class Options:
    """Options of a source: the `folder` of prepared data; the `field` of the text; the unit of a `document`
    of plain text; whether to `divide` data without splits (otherwise every split is the whole); whether
    `numbers` are read as text; all `fields` that several sources read of the same records ((): only `field`);
    whether the text may be in `lists` of alternatives, of which the first is read; whether the value may also
    be one of JSON's `structures`, a list or an object, which `Source.value` gives; the fields `unread` of
    which a record may have none, because they change what the others mean; the fields `additional`, which a
    record may lack and has with the one that is read; the fields that are `optional`, whose null is the empty
    text; and `open_source`, for sources that are made from another.

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
    additional: Sequence[str] = ()
    optional: Sequence[str] = ()
    open_other: Any = None

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
            field = f"{there[0]!r} is {brief(repr(record[there[0]]), 60)}, which is not read"
            raise UserError(f"{place()}: {field}; write it into the messages, or leave it out")

    def alternatives(self, value: Any) -> list[str] | None:
        """The texts of a list that are not only white space; None if the value is not such a list, or `lists`
        are not asked for."""
        if not self.lists or not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            return None
        return [text for text in value if text.strip()]


def before_answer(value: Any) -> Any:
    """Of a list of messages the role and the text of those before the first answer to a user; any other value
    as it is."""
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) for turn in value):
        return value
    turns = [(turn.get("role") or turn.get("from"), turn.get("content", turn.get("value"))) for turn in value]
    first = next((i for i, (role, _) in enumerate(turns) if role in ("user", "human")), len(turns))
    answers = (i for i, (role, _) in enumerate(turns) if i > first and role in ("assistant", "gpt"))
    return turns[: next(answers, len(turns))]
