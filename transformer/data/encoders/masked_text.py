"""Text for masked language modelling: from a config's `data` group to batches."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from transformer.config import Bound
from transformer.data.cache.token_cache import TokenCache
from transformer.data.encoders.encoder_packing import EncoderRows
from transformer.data.encoders.masking import Masking, WordBoundaries
from transformer.data.encoders.next_sentence import NextSentencePairs
from transformer.data.loader import DataLoader
from transformer.data.packed_corpus import PackedCorpus
from transformer.data.pairs.pair_packing import ranges
from transformer.data.sources.base import tallied
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

Share = Annotated[float, Bound("a share between 0 and 1", 0, 1, without=(0, 1))]


@dataclass(frozen=True)
class MaskedDataConfig(TextDataConfig):
    """Documents of text with masked tokens."""

    sequence_length: Annotated[int, Bound("at least 8: markers and text", 8)] = 128
    next_sentence: bool = True  # rows of two texts, half of them consecutive: next-sentence prediction
    masking: Literal["token", "word", "span"] = "token"  # unit of masking; span: up to ten words
    masked_share: Share = 0.15  # share of tokens to predict


class Chunks(EncoderRows):
    """Documents, split into chunks if they are longer than a row."""

    def __init__(self, cache: TokenCache, special_tokens: SpecialTokens, length: int) -> None:
        """`length` is the length of a row."""
        self.cache = cache
        self._spans_n2 = _cut(cache, length - 2)
        sizes_n = np.diff(self._spans_n2)[:, 0]
        self.tally = tallied(len(sizes_n), {"empty": (np.diff(cache.offsets) <= 2).sum()}, "packed")
        super().__init__(
            sizes_n + 2, np.zeros(len(sizes_n), np.int32), np.arange(len(sizes_n)), special_tokens, length
        )

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of a chunk."""
        start, end = self._spans_n2[index]
        return [self.cache.tokens[start:end]]

    def document(self, index: int) -> int:
        """The number of the document of a chunk."""
        return self.cache.document_at(self._spans_n2[index, 0])


class MaskedData(PackedCorpus, TextData):
    """The text of a config in rows with masked tokens; raises as `Corpus`."""

    config: MaskedDataConfig

    def __init__(self, config: MaskedDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        super().__init__(config, tokenizer)
        self.special_tokens = SpecialTokens.of(self.tokenizer)

    def blank(self) -> None:
        """None: rows have more arrays than those of `TextData`."""

    @functools.cached_property
    def words(self) -> WordBoundaries:
        """The tokens that start words."""
        return WordBoundaries(self.tokenizer, self.special_tokens)

    def rows(self, split: str, seed: int = 0) -> EncoderRows:  # type: ignore[override]
        """The packed rows of a split, tokenised on first use; `seed` draws the sentence pairs."""
        cache = TokenCache.of(self.source(split), self.tokenizer, self.folder)
        length = self.config.sequence_length
        if self.config.next_sentence:
            chunks_n2 = _cut(cache, length - 3)
            return NextSentencePairs(cache, self.words, self.special_tokens, length, chunks_n2, seed)
        return Chunks(cache, self.special_tokens, length)

    def packings(self, split: str) -> Iterator[tuple[str, Any]]:
        """See `PackedCorpus`; each source of a mixture is packed by itself."""
        for part in self.parts(split).values():
            yield part.source(split).name, part.rows(split)

    def loader(self, split: str, batch_size: int, *, seed: int = 0, **options) -> DataLoader:
        """Batches of a split, with new sentence pairs in each epoch and new masks each time a row is
        drawn."""
        c = self.config
        rows, masking = self.rows(split, seed), self.masking(seed)
        return DataLoader(rows, batch_size, seed=seed, workers=c.workers, transform=masking, **options)

    def masking(self, seed: int) -> Callable[..., dict[str, np.ndarray]]:
        """The transform that masks the rows of a batch."""
        c = self.config
        return Masking(self.words, self.special_tokens, c.masking, c.masked_share, seed)


def _cut(cache: TokenCache, most: int) -> np.ndarray:
    """Documents as spans (n, 2) of at most `most` tokens.

    Raises:
      UserError: no span is left.
    """
    starts, ends = cache.offsets[:-1] + 1, cache.offsets[1:] - 1  # without `[bos]` and `[eos]`
    counts = -(-(ends - starts) // most)
    first = np.repeat(starts, counts) + ranges(counts) * most
    if not len(first):
        raise UserError("data.source: no document has a token")
    return np.stack([first, np.minimum(first + most, np.repeat(ends, counts))], axis=1)
