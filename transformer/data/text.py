"""The text of a run: from a config's `data` group to batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformer.data.corpus import Corpus, CorpusConfig, counted
from transformer.data.packing import PackedRows
from transformer.data.sources import Source
from transformer.data.token_cache import TokenCache
from transformer.errors import UserError


@dataclass(frozen=True)
class TextDataConfig(CorpusConfig):
    """Documents of text, packed into rows; `configs/base/` says what each key means."""

    source: str = "stdlib"
    text_field: str = "text"
    document: Literal["file", "line", "paragraph"] = "file"
    sequence_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 1:
            raise UserError(f"sequence_length: {self.sequence_length}; expected at least 1 token")


class TextData(Corpus):
    """The documents of a config; raises as `Corpus` does."""

    config: TextDataConfig
    lines = "text"

    def source(self, split: str) -> Source:
        """The documents of a split."""
        return self.open(split, self.config.text_field, document=self.config.document)

    def sources(self, split: str) -> Sequence[Source]:
        """The documents of a split, alone."""
        return [self.source(split)]

    @property
    def reads(self) -> Sequence[str]:
        """The text's field."""
        return [self.config.text_field]

    def rows(self, split: str) -> Any:
        """The packed rows of a split, tokenised first where that was never done."""
        cache = TokenCache.of(self.source(split), self.tokenizer, self.folder)
        return counted(PackedRows(cache, self.config.sequence_length), [cache], split)

    def text(self, split: str) -> Iterator[str]:
        """The text of a split, in pieces: what general compressors are to be compared on."""
        return self.source(split).texts()
