"""Pairs of texts, a query and the passage that answers it: from a config's `data` group to batches."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from transformer.config import Bound
from transformer.data.cache.token_cache import BLANK, TokenCache
from transformer.data.corpus import CorpusConfig, key_in_errors
from transformer.data.loader import HostBatch, Rows
from transformer.data.packed_corpus import PackedCorpus
from transformer.data.sources import Source
from transformer.data.sources.base import tallied
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

Length = Annotated[int, Bound("at least 3: [CLS], a token, [SEP]", 3)]


@dataclass(frozen=True)
class EmbeddingDataConfig(CorpusConfig):
    """Pairs of a query and a passage, one to a row, maybe with hard negatives."""

    source: str = "docstrings"  # docstrings, csv:GLOB, tsv:GLOB, jsonl:GLOB or tfds:NAME
    query_field: str = "target"  # column or field of the query
    passage_field: str = "source"  # column or field of the passage that answers it
    negative_fields: str = ""  # fields of passages that do not, hard negatives: first,second
    query_length: Length = 64  # most tokens of a query, [CLS] and [SEP] among them; longer ones are truncated
    passage_length: Length = 128  # most tokens of a passage

    @property
    def longest(self) -> int:
        """The most tokens of any text."""
        return max(self.query_length, self.passage_length)


class EmbeddingData(PackedCorpus):
    """The pairs of a config, whose sides share a vocabulary; raises as `Corpus`."""

    config: EmbeddingDataConfig
    lines = "tsv"

    def __init__(self, config: EmbeddingDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        super().__init__(config, tokenizer)
        self.special_tokens = SpecialTokens.of(self.tokenizer)

    @property
    def reads(self) -> Sequence[str]:
        """The field of the query: equal queries are in one split."""
        return [self.config.query_field]

    def fields(self, split: str) -> tuple[str, ...]:
        """The fields of queries, passages and hard negatives."""
        c = self.config
        negatives = [name.strip() for name in c.negative_fields.split(",") if name.strip()]
        return c.query_field, c.passage_field, *negatives

    def sources(self, split: str) -> Sequence[Source]:
        """The source of each of these fields."""
        return [self.open(split, field) for field in self.fields(split)]

    def rows(self, split: str) -> "EmbeddingRows":
        """The pairs of a split, tokenised on first use."""
        caches = [TokenCache.of(source, self.tokenizer, self.folder) for source in self.sources(split)]
        with key_in_errors(self.key(split)):
            return self._rows(caches)

    def blank(self) -> HostBatch:
        """A row of padding, stacked, for its shapes; no data are read."""
        return self._rows([BLANK for _ in self.fields("train")]).batch(np.array([-1]))

    def _rows(self, caches: Sequence[TokenCache]) -> "EmbeddingRows":
        c = self.config
        return EmbeddingRows(caches, self.special_tokens, c.query_length, c.passage_length)


class EmbeddingRows(Rows):
    """A pair a row, with c - 1 hard negatives:

    - `queries` (q,), `passages` (c, p), int32: `[CLS] text [SEP]`, padded; the first passage is the own one;
    - `query_lengths` (), `passage_lengths` (c,): the tokens of each, without padding;
    - `query_ids` (), `passage_ids` (c,): equal texts of a split have equal ids, no text -1;
    - `weights` (): 1; in rows of padding 0.

    Pairs with an empty query or passage are left out, texts that are too long truncated: `tally` counts them.

    Raises:
      UserError: no pair is left.
    """

    def __init__(
        self, caches: Sequence[TokenCache], special_tokens: SpecialTokens, query_length: int, length: int
    ) -> None:
        """The caches have the queries, the passages and each kind of hard negatives, in the same order."""
        self.caches, self._special_tokens = caches, special_tokens
        self._most = query_length, *[length] * (len(caches) - 1)
        lengths_nc = np.stack([np.diff(cache.offsets) for cache in caches], axis=1)  # with two special tokens
        empty_n = np.any(lengths_nc[:, :2] <= 2, axis=1)
        if empty_n.all():
            raise UserError(f"no pair is left of {len(empty_n)}: the query or the passage of each is empty")
        long_n = np.any(lengths_nc > self._most, axis=1) & ~empty_n
        self.numbers = np.flatnonzero(~empty_n)
        counts = {"empty": empty_n.sum(), "truncated": long_n.sum()}
        self.tally = tallied(len(self.numbers), counts, "packed")

    def __len__(self) -> int:
        return len(self.numbers)

    def _text(self, column: int, number: int) -> np.ndarray:
        cache = self.caches[column]
        return cache.tokens[cache.offsets[number] + 1 : cache.offsets[number + 1] - 1]

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        """The id of each text, (n, c)."""
        ids: dict[bytes, int] = {hashlib.blake2b(b"", digest_size=16).digest(): -1}

        def number(column: int, n: int) -> int:
            key = hashlib.blake2b(self._text(column, n).tobytes(), digest_size=16).digest()
            return ids.setdefault(key, len(ids) - 1)

        columns, numbers = range(len(self.caches)), self.numbers.tolist()
        return np.array([[number(column, n) for column in columns] for n in numbers], np.int32)

    def batch(self, rows: np.ndarray) -> HostBatch:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        shape = len(rows), len(self.caches)
        ids_bc, lengths_bc = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        tokens = [np.zeros((len(rows), most), np.int32) for most in self._most]
        for i, row in enumerate(rows):
            for column, most in enumerate(self._most if row >= 0 else ()):
                text = self._text(column, self.numbers[row])[: most - 2]
                frame, _ = self._special_tokens.build_input([text])
                tokens[column][i, : len(frame)] = frame
                ids_bc[i, column], lengths_bc[i, column] = self._ids[row, column], len(frame)
        return {
            "queries": tokens[0],
            "passages": np.stack(tokens[1:], axis=1),
            "query_lengths": lengths_bc[:, 0],
            "passage_lengths": lengths_bc[:, 1:],
            "query_ids": ids_bc[:, 0],
            "passage_ids": ids_bc[:, 1:],
            "weights": (rows >= 0).astype(np.float32),
        }

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these rows the number, from 0, of its record."""
        return [self.numbers[row : row + 1] if row >= 0 else self.numbers[:0] for row in rows]
