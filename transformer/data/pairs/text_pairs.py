"""Pairs of texts, source and target: from a config's `data` group to batches."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from transformer.config import Bound, Rate
from transformer.data.cache.token_cache import BLANK, TokenCache
from transformer.data.corpus import CorpusConfig, key_in_errors, without_lossy_bytes
from transformer.data.loader import DataLoader
from transformer.data.packed_corpus import PackedCorpus
from transformer.data.pairs.pair_packing import JoinedPairs, PackedPairs, RepackedPairs
from transformer.data.sources import Source
from transformer.data.sources.joined_fields import JoinedFields
from transformer.data.tokenization.bpe_dropout import Segmentations
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError


class Side(JoinedFields):
    """The texts of one field, or of several fields of the same records joined by line breaks.

    A text of only white space counts as empty.
    """

    kind = "side"

    def __getitem__(self, index: int) -> dict[str, Any]:
        text = "\n".join(part.text(index) for part in self._parts)
        return {self.field: text if text.strip() else ""}

    def alternatives(self, index: int) -> list[str]:
        """The non-empty alternatives of a single field; several fields have one joined text."""
        several = len(self._parts) == 1 and self.text(index)
        return self._parts[0].alternatives(index) if several else [self.text(index)]


Length = Annotated[int, Bound("at least 2: a token and the end", 2)]


@dataclass(frozen=True)
class PairDataConfig(CorpusConfig):
    """Pairs of texts, packed into rows."""

    source: str = "written_forms"  # or tsv:GLOB, aligned:SOURCE,TARGET (two files), jsonl:GLOB, tfds:NAME
    source_field: str = "source"  # column, field or language of the source; several: question,context
    target_field: str = "target"  # that of the target; of a list in jsonl the first is trained on
    reference_fields: str = ""  # further references for the metrics, besides all of a list
    source_length: Length = 128  # source tokens per row
    target_length: Length = 128  # target tokens per row
    first_token: str = ""  # name of a token before each source and each target (BART: <s>); "": none
    too_long: Literal["cut", "skip", "refuse"] = "cut"  # pairs longer than a row: truncate, leave out, error
    # BPE dropout: the probability that BPE leaves out a merge in training, again for each word and epoch
    bpe_dropout: Rate = 0.0


@dataclass(frozen=True)
class PrefixedTexts:
    """The texts of a `TokenCache` with one token more before each."""

    tokens: np.ndarray
    num_bytes: np.ndarray
    offsets: np.ndarray


def prefixed(cache: Any, first_tokens: Sequence[int]) -> PrefixedTexts:
    """The texts of a cache, in memory, with the token `first_tokens` after their start; empty ones stay."""
    there_n = np.diff(cache.offsets) > 2
    places, offsets = cache.offsets[:-1][there_n] + 1, cache.offsets + np.append(0, np.cumsum(there_n))
    tokens = np.insert(cache.tokens, places, first_tokens[0])
    return PrefixedTexts(tokens, np.insert(cache.num_bytes, places, 0), offsets)


class PairData(PackedCorpus):
    """The pairs of a config, whose sides share a vocabulary; raises as `Corpus`."""

    config: PairDataConfig
    lines = "tsv"

    def __init__(
        self,
        config: PairDataConfig,
        tokenizer: Tokenizer | None = None,
        packing: Callable[..., PackedPairs] = PackedPairs,
    ) -> None:
        """`tokenizer` is that of the run folder, by default that of the config; `packing` makes the rows."""
        super().__init__(config, tokenizer)
        self._packing = packing

    def fields(self, split: str) -> tuple[str, ...]:
        """The fields of source and target, and of further references in splits that are evaluated."""
        c = self.config
        return *c.source_field.split(","), *c.target_field.split(","), *self._further(split)

    def sources(self, split: str) -> Sequence[Source]:
        """The sources and the targets of a split, in the same order."""
        sides = [self._side(split, fields) for fields in (self.config.source_field, self.config.target_field)]
        with key_in_errors(self.key(split)):
            first, second = map(len, sides)
            if first != second:
                counts = f"{first:,} sources and {second:,} targets"
                raise UserError(f"{sides[0].name} has {counts}; expected equal numbers")
        return sides

    @property
    def reads(self) -> Sequence[str]:
        """The fields of the source."""
        return self.config.source_field.split(",")

    def rows(self, split: str) -> Any:
        """The packed rows of a split, tokenised on first use."""
        return self._packed(split, self._caches(split))

    def blank(self) -> dict[str, np.ndarray]:
        """A row of padding, stacked, for its shapes; no data are read."""
        c = self.config
        return self._packing(BLANK, BLANK, c.source_length, c.target_length).batch(np.array([-1]))

    def loader(self, split: str, batch_size: int, *, repeat: bool = False, **options) -> DataLoader:
        """As for `Corpus`; rows that repeat are packed again in every epoch, and drop merges of BPE by
        `bpe_dropout`."""
        rows: Any = self._repacked(split) if repeat else self.rows(split)
        return DataLoader(rows, batch_size, workers=self.config.workers, repeat=repeat, **options)

    def _caches(self, split: str) -> list[TokenCache]:
        sides = zip(self.sources(split), self._tokenizers, strict=True)
        return [TokenCache.of(side, tokenizer, self.folder) for side, tokenizer in sides]

    @property
    def _tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Those of sources and of targets."""
        return self.tokenizer, self.tokenizer.targets

    def _packed(self, split: str, caches: Sequence[Any], sides: Sequence[Any] = (), seed: int = 0) -> Any:
        """The rows of a split; `sides` are the tokens of sources and targets, by default `caches`."""
        c = self.config
        sides = [prefixed(side, self.first_tokens) for side in sides or caches] if c.first_token else sides
        with key_in_errors("too_long"):
            rows = self._packing(*sides or caches, c.source_length, c.target_length, c.too_long, seed=seed)
        of_both = isinstance(rows, JoinedPairs) and rows.loss_on == "all"
        return without_lossy_bytes(rows, caches if of_both else caches[1:], split)

    def _repacked(self, split: str) -> RepackedPairs:
        caches, rate = self._caches(split), self.config.bpe_dropout
        first = self._packed(split, caches)
        if not rate:
            return RepackedPairs(first, lambda epoch, seed: self._packed(split, caches, seed=seed))
        with key_in_errors("bpe_dropout"):
            words = [
                Segmentations.of(side, tokenizer, rate, self.folder)
                for side, tokenizer in zip(self.sources(split), self._tokenizers, strict=True)
            ]
        most = self.config.source_length + 1, self.config.target_length + 1

        def pack_epoch(epoch: int, seed: int) -> Any:
            drawn = [side.drawn((epoch, i), most[i]) for i, side in enumerate(words)]
            return self._packed(split, caches, drawn, seed)

        # Epochs differ little in their number of tokens.
        rows = math.ceil(1.02 * len(pack_epoch(0, 0)))
        return RepackedPairs(first, pack_epoch, most=max(rows, len(first)))

    def texts(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs of a split, without those that `rows` leaves out."""
        return ((source, references[0]) for source, references in self.examples(split))

    def examples(self, split: str) -> Iterator[tuple[str, list[str]]]:
        """The sources of `texts` with all references: the target, further texts of its list, and those of
        `reference_fields`."""
        sources, targets = self.sources(split)
        further = [self._side(split, field) for field in self._further(split)]
        for index in self._kept(split):
            references = (text for side in (targets, *further) for text in side.alternatives(index))
            yield sources.text(index), [text for text in references if text.strip()]

    def _kept(self, split: str) -> Iterator[int]:
        """The numbers of the pairs of `texts`."""
        sources, targets = self.sources(split)
        for index in range(len(sources)):
            source, target = sources.text(index), targets.text(index)
            if source and target and not (self.config.too_long == "skip" and self._too_long(source, target)):
                yield index

    def counted(self, split: str, sources: Sequence[str]) -> str:
        """The number of evaluated pairs, and how many are left out or truncated."""
        c, indices = self.config, [*self._kept(split)]
        counts = [f"{len(sources):,} of {len(indices):,} pairs"]
        if left_out := len(self.sources(split)[0]) - len(indices):
            why = "is empty or too long" if c.too_long == "skip" else "is empty"
            counts.append(f"{left_out:,} more left out: one side {why}")
        further = [self._side(split, field) for field in self._further(split)]
        if empty := sum(not side.text(i) for side in further for i in indices):
            counts.append(f"{empty:,} references are empty")
        if cut := sum(len(self.encode_source(source)) > c.source_length for source in sources):
            counts.append(f"{cut:,} sources truncated to {c.source_length} tokens")
        return "; ".join(counts)

    def described(self, rows: Any) -> list[str]:
        """The number of pairs of packed rows, and the share of padding."""
        return [f"{rows.pairs:,} training pairs in {len(rows):,} rows, {rows.padding:.1%} of them padding"]

    def inputs(self, split: str) -> Iterator[str]:
        """The sources of a split."""
        side = Side(self.asked(split))
        return (side.text(index) for index in range(len(side)))

    def encode_source(self, text: str) -> list[int]:
        """The tokens of a source and the end token."""
        return [*self.first_tokens, *self.tokenizer.encode(text), self.tokenizer.eos_id]

    @functools.cached_property
    def first_tokens(self) -> list[int]:
        """The token `first_token`, if there is one; raises `UserError` if the tokenizer has no such token."""
        name = self.config.first_token
        token = self.tokenizer.find(name)
        if name and token is None:
            raise UserError(f"data.first_token: {name!r}; the tokenizer has no such token")
        return [token] if name and token is not None else []

    def _side(self, split: str, fields: str) -> Source:
        options = {"lists": True, "optional": self._further(split)}
        return Side([self.open(split, field, **options) for field in fields.split(",")])

    def _further(self, split: str) -> list[str]:
        """The fields of further references; training data need not have them."""
        c = self.config
        trained = c.validation_source and self.key(split) == "source"
        return c.reference_fields.split(",") if c.reference_fields and not trained else []

    def _too_long(self, source: str, target: str) -> bool:
        of_source, of_target = (tokenizer.encode for tokenizer in self._tokenizers)
        c = self.config
        return len(of_source(source)) >= c.source_length or len(of_target(target)) >= c.target_length
