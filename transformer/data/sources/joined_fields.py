"""A source of several fields of the same records, each of which is read as a source."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.data.cache.disk_cache import digest
from transformer.data.sources.base import Source


class JoinedFields(Source):
    """The records of `parts`, one source for each field; subclasses make records of theirs."""

    kind: str
    """A name of the class, as a part of its identity."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self._parts = parts
        self.name = parts[0].name
        self.identity = digest(self.kind, [part.identity for part in parts])

    def __len__(self) -> int:
        return len(self._parts[0])

    @property
    def content(self) -> dict[str, Any]:
        """The content of all fields."""
        return {name: content for part in self._parts for name, content in part.content.items()}

    @functools.cached_property
    def tally(self) -> Mapping[str, int]:  # type: ignore[override]
        """The tally of the records."""
        return self._parts[0].tally

    def place(self, index: int) -> str:
        """The location of a record in the source of the first field."""
        return self._parts[0].place(index)
