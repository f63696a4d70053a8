"""Labelled texts, or labelled pairs of texts: from a config's `data` group to batches."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from transformer.conditions import only
from transformer.config import Bound, Nonnegative
from transformer.data.cache.disk_cache import build_once, digest, load_values
from transformer.data.cache.token_cache import TokenCache
from transformer.data.corpus import CorpusConfig, key_in_errors
from transformer.data.encoders.encoder_packing import PackedTexts
from transformer.data.encoders.labels import count_labels, find_labels, number_labels
from transformer.data.packed_corpus import PackedCorpus
from transformer.data.sources import Source
from transformer.data.text.long_texts import TooLong, count_excerpts, excerpt
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError


@dataclass(frozen=True)
class LabelledDataConfig(CorpusConfig):
    """Labelled texts, packed into rows."""

    source: str = "snippets"  # snippets, csv:GLOB, tsv:GLOB, jsonl:GLOB or tfds:NAME
    text_field: str = "text"  # column or field of the text
    second_field: str = ""  # column or field of the second text, for pairs
    label_field: str = "label"  # column or field of the label, a name or a number
    sequence_length: Annotated[int, Bound("at least 4, special tokens and text", 4)] = 256  # tokens per row
    # texts longer than a row: truncate, keep both ends, read all in windows, leave out, error
    too_long: TooLong = "cut"
    # most tokens between the starts of windows; 0: the length of a window
    stride: Annotated[Nonnegative, only("too_long", "windows")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.too_long == "windows":
            self._check_windows()

    def _check_windows(self) -> None:
        room = self.sequence_length - (3 if self.second_field else 2)
        if self.second_field and room < 2:
            raise UserError(f"sequence_length: {self.sequence_length}; windows of pairs need at least 5")
        if self.stride > room:
            raise UserError(f"stride: {self.stride}; expected 0 to {room}, the tokens of a window")


class LabelledData(PackedCorpus):
    """The labelled texts of a config; raises as `Corpus`, and if the labels are unusable."""

    config: LabelledDataConfig
    lines = "tsv"

    def __init__(
        self,
        config: LabelledDataConfig,
        tokenizer: Tokenizer | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """`tokenizer` and `labels` are those of the run folder; by default the training data determine
        them."""
        super().__init__(config, tokenizer)
        self.special_tokens = SpecialTokens.of(self.tokenizer)
        self.labels = list(labels or self._find_labels())

    def kept(self) -> dict[str, Any]:
        """The tokenizer and the names of the labels, in the order of the model's outputs."""
        return super().kept() | {"labels": self.labels}

    def fields(self, split: str) -> tuple[str, ...]:
        """The fields of the texts and the label."""
        c = self.config
        return tuple(field for field in (c.text_field, c.second_field, c.label_field) if field)

    def sources(self, split: str) -> Sequence[Source]:
        """The source of a split's texts; for pairs, the sources of the first and the second texts."""
        return [self.open(split, field) for field in self.reads]

    @property
    def reads(self) -> Sequence[str]:
        """The field of the text, or of both texts."""
        return [name for name in (self.config.text_field, self.config.second_field) if name]

    def open(self, split: str, field: str, **options: Any) -> Source:
        """As for `Corpus`; records are split by the text, of pairs by the first, which others have too."""
        return super().open(split, field, **{"reads": [self.config.text_field]} | options)

    def rows(self, split: str) -> PackedTexts:
        """The packed rows of a split, tokenised on first use.

        Raises:
          UserError: a label that the training data do not have.
        """
        with key_in_errors(self.key(split)):
            labels = number_labels(self._labels_of(split), self.labels, self._label_source(split).place)
        caches = [TokenCache.of(source, self.tokenizer, self.folder) for source in self.sources(split)]
        with key_in_errors("too_long"):
            c = self.config
            return PackedTexts(caches, labels, self.special_tokens, c.sequence_length, c.too_long, c.stride)

    def texts(self, split: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """The texts of a split with the names of their labels."""
        sources, names = self.sources(split), self._labels_of(split)
        for index, name in enumerate(names):
            yield tuple(source.text(index) for source in sources), name

    def label_counts(self, split: str) -> np.ndarray:
        """The number of records of each label in a split, (c,)."""
        return count_labels(self._labels_of(split), self.labels)

    def encoder_inputs(self, text: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """The input tokens of a text (or two, separated by a tab), in a row or, with `too_long` "windows", in
        several, and their types: 0, or 1 in the second text. What may not be in the training data, by
        `too_long`, is truncated."""
        c, ids = self.config, self.encode(text)
        how = c.sequence_length - 1 - len(ids), c.too_long, c.stride
        count = count_excerpts([*map(len, ids)], *how)
        return [self.special_tokens.build_input(excerpt(ids, *how, number)) for number in range(count)]

    def length(self, text: str) -> int:
        """The number of tokens of a text (or two, separated by a tab), with special tokens."""
        ids = self.encode(text)
        return sum(map(len, ids)) + 1 + len(ids)

    def encode(self, text: str) -> list[np.ndarray]:
        """The tokens of a text, or of two separated by a tab, without special tokens."""
        parts = text.split("\t", 1) if self.config.second_field else [text]
        return [np.array(self.tokenizer.encode(part), np.int32) for part in parts]

    def _find_labels(self) -> list[str]:
        return find_labels(self._labels_of("train"), "label_field", self._label_source("train").place)

    def _label_source(self, split: str) -> Source:
        return self.open(split, self.config.label_field, numbers=True)

    def _labels_of(self, split: str) -> list[str]:
        """The label of each record; read once and cached."""
        source = self._label_source(split)
        if not len(source):
            raise UserError(f"{source.name}: no records; give more, or data.validation_source")

        def build(new: Path) -> None:
            names = [source.text(index).strip() for index in range(len(source))]
            (new / "labels.json").write_text(json.dumps(names), encoding="utf-8")

        folder = build_once(self.folder / "labels" / digest(source.identity), build)
        return load_values(folder / "labels.json")
