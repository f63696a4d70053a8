"""Texts with labels, or pairs of texts with labels: from a config's `data` group to batches."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from transformer.config import Bound
from transformer.data.corpus import Corpus, CorpusConfig, naming
from transformer.data.disk_cache import build_once, digest
from transformer.data.encoder_packing import PackedTexts
from transformer.data.labels import count_labels, find_labels, number_labels
from transformer.data.sources import Source
from transformer.data.special_tokens import SpecialTokens
from transformer.data.token_cache import TokenCache
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError


@dataclass(frozen=True)
class LabelledDataConfig(CorpusConfig):
    """Texts with labels, packed into rows."""

    source: str = "snippets"  # snippets, csv:GLOB, tsv:GLOB, jsonl:GLOB or tfds:NAME
    text_field: str = "text"  # column or field of the text
    second_field: str = ""  # for pairs of texts, that of the second
    label_field: str = "label"  # that of the label, a name or a number
    sequence_length: Annotated[int, Bound("at least 4, markers and text", 4)] = 256  # tokens a row
    too_long: Literal["cut", "skip", "refuse"] = "cut"  # texts longer than a row (counted)


class LabelledData(Corpus):
    """The labelled texts of a config; raises as `Corpus` does, and where the labels are of no use."""

    config: LabelledDataConfig
    lines = "tsv"

    def __init__(
        self,
        config: LabelledDataConfig,
        tokenizer: Tokenizer | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """`tokenizer` and `labels`, a run folder's own, go before what the data say."""
        super().__init__(config, tokenizer)
        self.special_tokens = SpecialTokens.of(self.tokenizer)
        self.labels = list(labels or self._find_labels())

    def kept(self) -> dict[str, Any]:
        """The tokenizer and the names of the labels, in the order of the model's outputs."""
        return super().kept() | {"labels": self.labels}

    def fields(self, split: str) -> tuple[str, ...]:
        """Those of the texts and of the label."""
        c = self.config
        return tuple(field for field in (c.text_field, c.second_field, c.label_field) if field)

    def sources(self, split: str) -> Sequence[Source]:
        """The texts of a split; for pairs the first ones, and then the second ones in the same order."""
        return [self.open(split, field) for field in self.reads]

    @property
    def reads(self) -> Sequence[str]:
        """The field of the text, or those of both."""
        return [name for name in (self.config.text_field, self.config.second_field) if name]

    def rows(self, split: str) -> PackedTexts:
        """The packed rows of a split, tokenised first where that was never done.

        Raises:
          UserError: a label that the training data do not have.
        """
        with naming(self.key(split)):
            labels = number_labels(self._labels_of(split), self.labels, lambda i: f"record {i} of {split}")
        caches = [TokenCache.of(source, self.tokenizer, self.folder) for source in self.sources(split)]
        with naming("too_long"):
            return PackedTexts(
                caches, labels, self.special_tokens, self.config.sequence_length, self.config.too_long
            )

    def texts(self, split: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """The texts of a split as they are, with the names of their labels."""
        sources, names = self.sources(split), self._labels_of(split)
        for index, name in enumerate(names):
            yield tuple(source.text(index) for source in sources), name

    def label_counts(self, split: str) -> np.ndarray:
        """How many records of a split have each label, (c,)."""
        return count_labels(self._labels_of(split), self.labels)

    def encoder_input(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that a model reads of a text (or two, with a tab between them), cut to a row's length,
        and the type of each: 0, or 1 in the second text."""
        parts = text.split("\t", 1) if self.config.second_field else [text]
        ids = [np.array(self.tokenizer.encode(part), np.int32) for part in parts]
        return self.special_tokens.build_input(ids, self.config.sequence_length)

    def _find_labels(self) -> list[str]:
        source = self._label_source("train")
        return find_labels(self._labels_of("train"), "label_field", lambda i: source.place(i - 1))

    def _label_source(self, split: str) -> Source:
        return self.open(split, self.config.label_field, numbers=True)

    def _labels_of(self, split: str) -> list[str]:
        """The label of each record; read once, and kept beside the tokens."""
        source = self._label_source(split)
        if not len(source):
            raise UserError(f"{source.name}: no records; give more, or data.validation_source")

        def build(new: Path) -> None:
            names = [source.text(index).strip() for index in range(len(source))]
            (new / "labels.json").write_text(json.dumps(names), encoding="utf-8")

        folder = build_once(self.folder / "labels" / digest(source.identity), build)
        return json.loads((folder / "labels.json").read_text(encoding="utf-8"))
