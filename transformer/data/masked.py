"""Text for an encoder to be trained on without labels: from a config's `data` group to batches."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from transformer.data.framed_packing import FramedRows
from transformer.data.loader import Loader
from transformer.data.markers import Markers
from transformer.data.masking import Masking
from transformer.data.text import TextData, TextDataConfig
from transformer.data.token_cache import TokenCache
from transformer.data.tokenizers import Tokenizer
from transformer.data.words import Words
from transformer.errors import UserError


@dataclass(frozen=True)
class MaskedDataConfig(TextDataConfig):
    """Documents of text with tokens to guess; `configs/base/` says what each key means."""

    sequence_length: int = 128
    next_sentence: bool = True
    masking: Literal["token", "word", "span"] = "token"
    masked_share: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 8:
            raise UserError(f"sequence_length: {self.sequence_length}; expected at least 8: markers and text")
        if not 0 < self.masked_share < 1:
            raise UserError(f"masked_share: {self.masked_share}; expected a share between 0 and 1")


class Chunks(FramedRows):
    """Documents, those that are longer than a row cut into chunks of its length."""

    def __init__(self, cache: TokenCache, markers: Markers, length: int) -> None:
        """`length` is the row's."""
        self.cache = cache
        self._spans_n2 = _cut(cache, length - 2)
        sizes_n = np.diff(self._spans_n2)[:, 0]
        super().__init__(
            sizes_n + 2, np.zeros(len(sizes_n), np.int32), np.arange(len(sizes_n)), markers, length
        )

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The chunk's tokens."""
        start, end = self._spans_n2[index]
        return [self.cache.tokens[start:end]]


class SentencePairs(FramedRows):
    """Chunks of documents, each divided at a word into two texts; half of them have another second text.

    The label is 1 where the second text follows the first, and 0 where it is a piece of the same length of
    another document, of the same split (Devlin et al. 2019, section 3.1, "next sentence prediction"). What
    the pairs are is fixed; what is masked in them is not.

    Raises:
      UserError: there is one document only, so that no piece is of another.
    """

    def __init__(self, cache: TokenCache, words: Words, markers: Markers, length: int) -> None:
        """`length` is the row's."""
        self.cache = cache
        documents = np.flatnonzero(np.diff(cache.offsets) > 2)
        if len(documents) < 2:
            raise UserError(
                "data.next_sentence: the text is one document; data.document=paragraph divides it, and "
                "data.next_sentence=false does without"
            )
        rng = np.random.default_rng(0)
        begins = np.flatnonzero(words.begins(cache.tokens))  # where words do, in all documents
        starts_n, ends_n = _cut(cache, length - 3, least=2).T
        # Of the words that begin inside a chunk, one is where it is divided.
        lowest_n, highest_n = np.searchsorted(begins, [starts_n + 1, ends_n])
        possible = highest_n > lowest_n
        if not possible.any():
            raise UserError("data.next_sentence: no document has two words to divide between")
        starts_n, ends_n, lowest_n, highest_n = (
            each[possible] for each in (starts_n, ends_n, lowest_n, highest_n)
        )
        n = len(starts_n)
        middles_n = begins[rng.integers(lowest_n, highest_n)]
        follows_n = rng.random(n) < 0.5
        own_n = np.searchsorted(documents, np.searchsorted(cache.offsets, starts_n, side="right") - 1)
        other_n = documents[(own_n + rng.integers(1, len(documents), n)) % len(documents)]
        first_n, last_n = cache.offsets[other_n] + 1, cache.offsets[other_n + 1] - 1
        sizes_n = ends_n - middles_n
        piece_n = rng.integers(first_n, np.maximum(first_n, last_n - sizes_n) + 1)
        piece_n = np.maximum(first_n, begins[np.searchsorted(begins, piece_n, side="right") - 1])
        seconds_n = np.where(follows_n, middles_n, piece_n)
        second_ends_n = np.where(follows_n, ends_n, np.minimum(piece_n + sizes_n, last_n))
        self.firsts_n2 = np.stack([starts_n, middles_n], axis=1)
        self.seconds_n2 = np.stack([seconds_n, second_ends_n], axis=1)
        lengths_n = middles_n - starts_n + second_ends_n - seconds_n + 3
        super().__init__(lengths_n, follows_n.astype(np.int32), np.arange(n), markers, length)

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of both texts."""
        spans = self.firsts_n2[index], self.seconds_n2[index]
        return [self.cache.tokens[start:end] for start, end in spans]


class MaskedData(TextData):
    """The text of a config in rows to guess in; raises as `Corpus` does."""

    config: MaskedDataConfig

    def __init__(self, config: MaskedDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer`, a run folder's own, goes before what the config says."""
        super().__init__(config, tokenizer)
        self.markers = Markers.of(self.tokenizer)

    @functools.cached_property
    def words(self) -> Words:
        """Which tokens begin words."""
        return Words(self.tokenizer, self.markers)

    def rows(self, split: str) -> FramedRows:  # type: ignore[override]
        """The packed rows of a split, tokenised first where that was never done."""
        cache = TokenCache.of(self.source(split), self.tokenizer, self.folder)
        length = self.config.sequence_length
        if self.config.next_sentence:
            return SentencePairs(cache, self.words, self.markers, length)
        return Chunks(cache, self.markers, length)

    def loader(self, split: str, batch_size: int, *, seed: int = 0, **options) -> Loader:
        """Batches of a split, with other tokens to guess each time a row is drawn."""
        c = self.config
        masking = Masking(self.words, self.markers, c.masking, c.masked_share, seed)
        return super().loader(split, batch_size, seed=seed, transform=masking, **options)


def _cut(cache: TokenCache, most: int, least: int = 1) -> np.ndarray:
    """The text of documents as spans (n, 2) of at most `most` tokens; shorter ones than `least` are left out.

    Raises:
      UserError: none is left.
    """
    starts, ends = cache.offsets[:-1] + 1, cache.offsets[1:] - 1  # without `[bos]` and `[eos]`
    counts = -(-(ends - starts) // most)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(starts, counts) + number * most
    found = np.stack([first, np.minimum(first + most, np.repeat(ends, counts))], axis=1)
    found = found[found[:, 1] - found[:, 0] >= least]
    if not len(found):
        raise UserError(f"data.source: no document has {least} tokens")
    return found
