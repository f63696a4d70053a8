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
        spans_n2 = _cut(cache, length - 3, least=2)
        middle_n = np.array([self._divide(span, words, rng) for span in spans_n2])
        possible = middle_n > 0
        spans_n2, middle_n = spans_n2[possible], middle_n[possible]
        if not len(spans_n2):
            raise UserError("data.next_sentence: no document has two words to divide between")
        n = len(spans_n2)
        self._firsts_n2 = np.stack([spans_n2[:, 0], middle_n], axis=1)
        self._seconds_n2 = np.stack([middle_n, spans_n2[:, 1]], axis=1)
        follows_n = rng.random(n) < 0.5
        document_n = np.searchsorted(cache.offsets, spans_n2[:, 0], side="right") - 1
        for i in np.flatnonzero(~follows_n):
            place = np.searchsorted(documents, document_n[i]) + rng.integers(1, len(documents))
            other = documents[place % len(documents)]
            size = self._seconds_n2[i, 1] - self._seconds_n2[i, 0]
            self._seconds_n2[i] = self._piece(int(other), int(size), words, rng)
        lengths_n = np.diff(self._firsts_n2)[:, 0] + np.diff(self._seconds_n2)[:, 0] + 3
        super().__init__(lengths_n, follows_n.astype(np.int32), np.arange(n), markers, length)

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of both texts."""
        spans = self._firsts_n2[index], self._seconds_n2[index]
        return [self.cache.tokens[start:end] for start, end in spans]

    def _divide(self, span: np.ndarray, words: Words, rng: np.random.Generator) -> int:
        """A place inside the span where a word begins; 0 where there is none."""
        begins = np.flatnonzero(words.begins(self.cache.tokens[span[0] : span[1]])[1:]) + 1
        return int(span[0] + rng.choice(begins)) if len(begins) else 0

    def _piece(self, document: int, size: int, words: Words, rng: np.random.Generator) -> tuple[int, int]:
        """At most `size` tokens of a document, from a word's beginning on."""
        first, last = int(self.cache.offsets[document]) + 1, int(self.cache.offsets[document + 1]) - 1
        start = first + int(rng.integers(0, max(1, last - first - size + 1)))
        begins = np.flatnonzero(words.begins(self.cache.tokens[first : start + 1]))
        start = first + int(begins[-1])
        return start, min(start + size, last)


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
    spans = [
        (start, min(start + most, last))
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True)
        for start in range(first, last, most)
    ]
    found = np.array([span for span in spans if span[1] - span[0] >= least], np.int64).reshape(-1, 2)
    if not len(found):
        raise UserError(f"data.source: no document has {least} tokens")
    return found
