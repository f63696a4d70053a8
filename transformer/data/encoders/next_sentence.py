"""Pairs of texts for next-sentence prediction."""

import functools
from collections.abc import Sequence

import numpy as np

from transformer.data.cache.token_cache import TokenCache
from transformer.data.encoders.encoder_packing import EncoderRows
from transformer.data.encoders.masking import WordBoundaries
from transformer.data.sources.base import tallied
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.errors import UserError

GROUP = 32
"""The least number of pairs among which second texts are exchanged, if possible all of one length."""


class NextSentencePairs(EncoderRows):
    """Chunks of documents, each divided at a word boundary into two texts; half of them get the second text
    of another chunk.

    The label is 1 if the second text follows the first, and 0 if it is from a chunk of another document
    (Devlin et al. 2019, section 3.1, "next sentence prediction"). Second texts are exchanged among chunks
    with the same position in their documents (beginning, end, both or inside) and second texts of the same
    length. So the label cannot be predicted from one text, from lengths, or from document boundaries. If
    fewer than `GROUP` second texts have one length, similar lengths form a group and are truncated to less
    than the shortest. If a document has more than half of a group, some pairs with label 0 are from the same
    document.

    Labels and exchanges are a function of (seed, epoch); the packing is the same in all epochs. Chunks in
    which no second word starts are left out; `tally` counts them, and second texts that are truncated.

    Raises:
      UserError: there is only one document, or fewer than two chunks can be divided.
    """

    def __init__(
        self,
        cache: TokenCache,
        words: WordBoundaries,
        special_tokens: SpecialTokens,
        length: int,
        chunks_n2: np.ndarray,
        seed: int,
    ) -> None:
        """`length` is the length of a row; chunk i is tokens chunks_n2[i, 0]:chunks_n2[i, 1] of the cache,
        within one document and at most `length` - 3 tokens."""
        self.cache, self._seed = cache, seed
        documents = np.flatnonzero(np.diff(cache.offsets) > 2)
        if len(documents) < 2:
            raise UserError(
                "data.next_sentence: the text is one document; data.document=paragraph divides it, and "
                "data.next_sentence=false does without"
            )
        begins = np.flatnonzero(words.begins(np.asarray(cache.tokens)))  # starts of words, in all documents
        starts_n, ends_n = chunks_n2.T
        # A chunk is divided at one of the words that start inside it.
        lowest_n, highest_n = np.searchsorted(begins, [starts_n + 1, ends_n])
        possible = highest_n > lowest_n
        if possible.sum() < 2:
            raise UserError("data.next_sentence: fewer than two texts have two words")
        starts_n, ends_n, lowest_n, highest_n = (
            values_n[possible] for values_n in (starts_n, ends_n, lowest_n, highest_n)
        )
        n = len(starts_n)
        middles_n = begins[np.random.default_rng(0).integers(lowest_n, highest_n)]
        own_n = np.searchsorted(cache.offsets, starts_n, side="right") - 1
        # Documents start with `[bos]` and end with `[eos]`.
        place_n = 2 * (starts_n == cache.offsets[own_n] + 1) + (ends_n == cache.offsets[own_n + 1] - 1)
        sizes_n = ends_n - middles_n
        self._order, self._starts_g = _groups(place_n, sizes_n, own_n)
        self._sizes_g = np.diff(self._starts_g, append=n)
        self._most_g = _commonest(own_n[self._order], self._starts_g)
        least_g = np.minimum.reduceat(sizes_n[self._order], self._starts_g)
        most_g = np.maximum.reduceat(sizes_n[self._order], self._starts_g)
        # In a group of several lengths all second texts are truncated: an untruncated one could be told from
        # its end and from the length of the pair.
        cut_g = np.where(least_g < most_g, np.maximum(least_g - 1, 1), most_g)
        whole_n = sizes_n.copy()
        sizes_n[self._order] = np.repeat(cut_g, self._sizes_g)
        counts = {"truncated": (sizes_n < whole_n).sum(), "no second word": len(possible) - n}
        self.tally = tallied(n, counts | {"empty": len(cache.offsets) - 1 - len(documents)}, "packed")
        self.firsts_n2 = np.stack([starts_n, middles_n], axis=1)
        self.seconds_n2 = np.stack([middles_n, middles_n + sizes_n], axis=1)
        lengths_n = middles_n + sizes_n - starts_n + 3
        super().__init__(lengths_n, np.ones(n, np.int32), np.arange(n), special_tokens, length)

    def batch_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices in these epochs, stacked; index -1 is a row of padding."""
        return self.batch(rows, epochs)

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of both texts of a chunk, without exchange."""
        spans = self.firsts_n2[index], self.seconds_n2[index]
        return [self.cache.tokens[start:end] for start, end in spans]

    def document(self, index: int) -> int:
        """The number of the document of the first text of a pair."""
        return self.cache.document_at(self.firsts_n2[index, 0])

    def read(self, index: int, epoch: int) -> tuple[Sequence[np.ndarray], int]:
        """The tokens of both texts of a pair in an epoch, and the label."""
        giver_n, follows_n = self.pairs(epoch)
        spans = self.firsts_n2[index], self.seconds_n2[giver_n[index]]
        return [self.cache.tokens[start:end] for start, end in spans], int(follows_n[index])

    @functools.lru_cache(2)  # noqa: B019 (a batch may have rows of two epochs)
    def pairs(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """For each pair in an epoch, the index (n,) of the pair whose second text it gets, and the label."""
        rng = np.random.default_rng([self._seed, epoch])
        follows_n = rng.random(len(self._order)) < 0.5
        # Groups are sorted by document: a shift by at least the size of the largest document gives a second
        # text of another document.
        least_g = np.where(2 * self._most_g <= self._sizes_g, self._most_g, 1)
        distance_g = rng.integers(least_g, self._sizes_g - least_g + 1)
        distance_n, sizes_n = np.repeat(distance_g, self._sizes_g), np.repeat(self._sizes_g, self._sizes_g)
        starts_n = np.repeat(self._starts_g, self._sizes_g)
        places_n = np.arange(len(self._order)) - starts_n
        giver_n = np.empty_like(self._order)
        giver_n[self._order] = self._order[starts_n + (places_n + distance_n) % sizes_n]
        giver_n = np.where(follows_n, np.arange(len(giver_n)), giver_n)
        return giver_n, follows_n.astype(np.int32)


def _groups(place_n: np.ndarray, lengths_n: np.ndarray, own_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An order of the pairs (n,) by group and within groups by document, and the starts of the groups.

    The pairs of a group have the same position in their documents and the same length, or similar lengths if
    there are fewer than `GROUP` of one length.
    """
    # Lengths alternate between ascending and descending, so that they are similar at the border of two
    # positions.
    signed_n = np.where(place_n % 2, -lengths_n, lengths_n)
    order = np.lexsort((signed_n, place_n))
    new = (np.diff(place_n[order], prepend=-1) != 0) | (np.diff(signed_n[order], prepend=-1) != 0)
    starts = [0]
    runs = np.flatnonzero(new)
    places = place_n[order][runs]
    last_of_place = np.append(places[1:] != places[:-1], True)
    for end, last in zip(np.append(runs[1:], len(order)).tolist(), last_of_place, strict=True):
        if end - starts[-1] >= GROUP:
            starts.append(end)
        elif last and len(starts) > 1 and place_n[order[starts[-1] - 1]] == place_n[order[end - 1]]:
            starts[-1] = end  # too few are left of this position: they join the group before
    starts_g = np.array(starts[:-1] if len(order) - starts[-1] < GROUP and len(starts) > 1 else starts)
    group_n = np.searchsorted(starts_g, np.arange(len(order)), side="right")
    return order[np.lexsort((own_n[order], group_n))], starts_g


def _commonest(own_n: np.ndarray, starts_g: np.ndarray) -> np.ndarray:
    """The number of pairs of the largest document in each group, (g,); `own_n` is sorted within groups."""
    group_n = np.searchsorted(starts_g, np.arange(len(own_n)), side="right")
    new = (np.diff(own_n, prepend=-1) != 0) | (np.diff(group_n, prepend=-1) != 0)
    counts = np.diff(np.append(np.flatnonzero(new), len(own_n)))
    return np.maximum.reduceat(counts, np.searchsorted(np.flatnonzero(new), starts_g))
