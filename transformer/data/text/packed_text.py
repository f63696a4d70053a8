"""Documents of text, packed into rows of one length, with random access."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from transformer.config import OnThisSystem, Positive
from transformer.data.cache.token_cache import BLANK, TokenCache
from transformer.data.corpus import Corpus, CorpusConfig, without_lossy_bytes
from transformer.data.loader import Rows
from transformer.data.sources import Source
from transformer.data.text.mixture import check_sources, mixture_of
from transformer.data.tokenization.tokenizers import Tokenizer


class PackedRows(Rows):
    """Rows of `sequence_length` input tokens, with the next tokens as targets.

    Row r has tokens r t ... r t + t - 1 of the concatenated documents, and the targets are shifted by one:
    every token but the very first is a target in exactly one row. A row is a dictionary of arrays (t,):

    - `tokens`, `targets`: int32, 0 for padding;
    - `weights`: float32, 1, or 0 where the target starts another document or is padding;
    - `segments`: int32, 1, 2, ... for the documents of the row, 0 for padding;
    - `positions`: int32, 0, 1, ... from the start of each document, or of the row for a continued one;
    - `bytes`: int32, the number of UTF-8 bytes of the target.
    """

    def __init__(self, cache: TokenCache, sequence_length: int) -> None:
        """`sequence_length` is t."""
        self.cache, self.sequence_length = cache, sequence_length

    def __len__(self) -> int:
        return -(-(len(self.cache.tokens) - 1) // self.sequence_length)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return {name: values[0] for name, values in self.batch(np.array([row % len(self)])).items()}

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked, (b, t); index -1 is a row of padding."""
        t, total, offsets = self.sequence_length, len(self.cache.tokens), self.cache.offsets
        first_b1 = np.where(rows < 0, total, rows * t)[:, None]
        place_bt = first_b1 + np.arange(t + 1)
        inputs_bt = place_bt[:, 1:] < total  # the very last token has no target: it is padding
        place_bt = np.minimum(place_bt, total - 1)
        tokens_bt = self.cache.tokens[place_bt].astype(np.int32)
        document_bt = np.searchsorted(offsets, place_bt, side="right") - 1
        counted_bt = inputs_bt & (document_bt[:, 1:] == document_bt[:, :-1])
        document_bt = document_bt[:, :-1]
        start_bt = np.maximum(offsets[document_bt], first_b1)
        integers = {
            "tokens": tokens_bt[:, :-1] * inputs_bt,
            "targets": tokens_bt[:, 1:] * inputs_bt,
            "segments": (document_bt - document_bt[:, :1] + 1) * inputs_bt,
            "positions": (place_bt[:, :-1] - start_bt) * inputs_bt,
            "bytes": self.cache.num_bytes[place_bt[:, 1:]] * counted_bt,
        }
        batch = {name: values.astype(np.int32) for name, values in integers.items()}
        return batch | {"weights": counted_bt.astype(np.float32)}

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these rows the numbers, from 0, of the documents of its segments."""
        t, last = self.sequence_length, len(self.cache.tokens) - 2  # the very last token has no target
        ends_b2 = np.stack([rows * t, np.minimum(rows * t + t - 1, last)], axis=1)
        ends_b2 = np.searchsorted(self.cache.offsets, ends_b2, side="right") - 1
        documents = [np.arange(first, last + 1) for first, last in ends_b2.tolist()]
        return [numbers if row >= 0 else numbers[:0] for row, numbers in zip(rows, documents, strict=True)]


class StreamRows(Rows):
    """The rows in n = `streams` equal parts that are read in parallel: indices s n ... s n + n - 1 are the
    s-th rows of all parts, so batch s of a loader continues batch s - 1.

    Rows are those of `PackedRows`, but `segments` number the documents of the whole corpus, 1, 2, ..., and
    `continues` (b,) is 0 for the first row of a stream, otherwise 1. Each stream starts `ahead` rows before
    its part, with padding before the first row of all; the targets of these rows count only in their own
    part.
    """

    def __init__(self, rows: PackedRows, streams: int, ahead: int = 0) -> None:
        """`streams` is the batch size."""
        self._rows, self._streams = rows, streams
        self._each = -(-len(rows) // streams)
        self.ahead = min(ahead, self._each * (streams - 1))

    def __len__(self) -> int:
        return self._streams * (self.ahead + self._each)

    @property
    def counted(self) -> int:
        """The number of rows of the corpus."""
        return len(self._rows)

    def batch(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding, as are missing rows of the last
        streams."""
        place, stream = np.divmod(numbers, self._streams)
        row = stream * self._each + place - self.ahead
        row = np.where((numbers < 0) | (row < 0) | (row >= len(self._rows)), -1, row)
        batch = self._rows.batch(row)
        own = (place >= self.ahead)[:, None]
        batch |= {name: batch[name] * own for name in ("weights", "bytes")}
        cache, first = self._rows.cache, np.maximum(row, 0) * self._rows.sequence_length
        before = np.searchsorted(cache.offsets, first, side="right")[:, None] - 1
        segments = np.where(batch["segments"] > 0, batch["segments"] + before, 0).astype(np.int32)
        return batch | {"segments": segments, "continues": (place > 0).astype(np.int32)}

    def documents(self, numbers: np.ndarray) -> list[np.ndarray]:
        """For each of these rows the numbers, from 0, of the documents of its segments: all."""
        return [np.arange(len(self._rows.cache.offsets) - 1)] * len(numbers)


@dataclass(frozen=True)
class TextDataConfig(CorpusConfig):
    """Documents of text, packed into rows."""

    # stdlib (Python's own source text), text:GLOB, jsonl:GLOB, parquet:GLOB, hf:FOLDER, tfds:NAME
    source: str = "stdlib"
    # several sources instead, with their weights: {"stdlib": 0.7, "text:GLOB": 0.3}
    sources: Annotated[Mapping[str, Any], OnThisSystem()] = field(default_factory=dict)
    text_field: str = "text"  # field of the text, in jsonl, parquet, hf and tfds
    document: Literal["file", "line", "paragraph"] = "file"  # one document of text:GLOB
    sequence_length: Positive = 256  # tokens per row

    checks: ClassVar = {**CorpusConfig.checks, "sources": check_sources}

    def unread(self, more: Sequence[str]) -> dict[str, str]:
        """The keys that no source reads, of these and `more`: {key: "with ..."}."""
        names = [*(self.sources or [self.source]), *filter(None, [self.validation_source]), *more]
        plain = all(name.startswith("text:") for name in names)
        return {"text_field": f"with {', '.join(names)}"} if plain else {}


class TextData(Corpus):
    """The documents of a config; raises as `Corpus`."""

    config: TextDataConfig
    lines = "text"

    @classmethod
    def of(cls, config: Any, tokenizer: Tokenizer | None = None) -> Self:
        """The data of one source or of a mixture; `tokenizer` is that of the run folder, by default that of
        the config."""
        if config.sources:
            return mixture_of(cls)(config, tokenizer)
        return cls(config, tokenizer)

    def source(self, split: str) -> Source:
        """The documents of a split."""
        return self.open(split, self.config.text_field, document=self.config.document)

    def sources(self, split: str) -> Sequence[Source]:
        """The documents of a split as the only source."""
        return [self.source(split)]

    @property
    def reads(self) -> Sequence[str]:
        """The field of the text."""
        return [self.config.text_field]

    def rows(self, split: str) -> Any:
        """The packed rows of a split, tokenised on first use."""
        cache = TokenCache.of(self.source(split), self.tokenizer, self.folder)
        return without_lossy_bytes(PackedRows(cache, self.config.sequence_length), [cache], split)

    def parts(self, split: str) -> dict[str, Any]:
        """Name -> data of each source that a split of a mixture has; {"": these} for one source."""
        return {"": self}

    def blank(self) -> dict[str, np.ndarray] | None:
        """A row of padding, stacked, for its shapes; no data are read. None if these depend on the data."""
        return PackedRows(BLANK, self.config.sequence_length).batch(np.array([-1]))

    def text(self, split: str) -> Iterator[str]:
        """The text of a split in pieces, for comparison with compressors."""
        return self.source(split).texts()
