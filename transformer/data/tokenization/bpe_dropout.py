"""BPE dropout: words are segmented again in every epoch, as a regularisation of training."""

import functools
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer.data.cache.disk_cache import build_once, digest, map_arrays
from transformer.data.cache.token_cache import BAR
from transformer.data.pairs.pair_packing import ranges
from transformer.data.sources import Source
from transformer.data.tokenization.token_bytes import byte_sizes
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 1
DRAWN = 16
"""The number of random segmentations of each word."""
MAX_SEGMENTED_BYTES = 64
"""Words of more bytes keep their usual segmentation, because the time to draw one is quadratic."""


class Segmentations:
    """The documents of a source as words, and of each word the usual segmentation and `DRAWN` random ones.

    Segmentation v of word w are the tokens ids[starts[w, v] : starts[w, v] + lengths[w, v]]; v = 0 is the
    usual one. Document i has the words words[offsets[i] : offsets[i + 1]]. All but `starts` are read-only
    memory maps.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Opens complete files."""
        arrays = map_arrays(folder)
        self.words, self.offsets, self.ids = arrays["words"], arrays["offsets"], arrays["ids"]
        self.lengths = arrays["lengths"].reshape(-1, 1 + DRAWN)
        ends = np.cumsum(self.lengths, dtype=np.int64).reshape(self.lengths.shape)
        self.starts, self.around = ends - self.lengths, (tokenizer.bos_id, tokenizer.eos_id)
        self.sizes: Any = byte_sizes(tokenizer)

    @classmethod
    def of(cls, source: Source, tokenizer: Tokenizer, rate: float, data_folder: Path) -> "Segmentations":
        """Opens the segmentations of a source, or draws them; each merge is left out with probability `rate`.

        Raises:
          UserError: the tokenizer is not a byte-level BPE.
        """
        if byte_sizes(tokenizer) is None or not merges(tokenizer):
            raise UserError(
                f"{rate} needs a byte-level BPE that keeps case and accents: tokenizer 'bpe', or its file"
            )
        key = digest(FORMAT, DRAWN, MAX_SEGMENTED_BYTES, source.identity, tokenizer.identity, rate)
        build = functools.partial(_write, source, tokenizer, rate)
        return cls(build_once(data_folder / "segmentations" / key, build), tokenizer)

    def drawn(self, seed: Sequence[int], most: int) -> "DrawnTokens":
        """The documents with one of the random segmentations of each word. Those that would have more than
        `most` tokens, with bos and eos, keep the usual one: none is truncated because of its draw."""
        choice = np.random.default_rng(seed).integers(1, 1 + DRAWN, len(self.words))
        too_long = np.diff(DrawnTokens(self, choice).offsets) > most
        return DrawnTokens(self, np.where(np.repeat(too_long, np.diff(self.offsets)), 0, choice))

    def usual(self) -> "DrawnTokens":
        """The documents with the usual segmentations."""
        return DrawnTokens(self, np.zeros(len(self.words), np.int64))


class DrawnTokens:
    """The documents under one choice of segmentations, as in a `TokenCache`."""

    def __init__(self, all_of: Segmentations, choice: np.ndarray) -> None:
        """`choice` has the segmentation of each word."""
        self._all, self._choice = all_of, choice
        ends = np.append(0, np.cumsum(all_of.lengths[all_of.words, choice], dtype=np.int64))
        self._begins = ends[all_of.offsets]
        self.offsets = self._begins + 2 * np.arange(len(self._begins))

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """All tokens, as in a `TokenCache`."""
        words, choice = self._all.words, self._choice
        counts, starts = self._all.lengths[words, choice], self._all.starts[words, choice]
        tokens = np.zeros(self.offsets[-1], self._all.ids.dtype)
        tokens[self._inside] = self._all.ids[np.repeat(starts, counts) + ranges(counts)]
        tokens[self.offsets[:-1]], tokens[self.offsets[1:] - 1] = self._all.around
        return tokens

    @functools.cached_property
    def num_bytes(self) -> np.ndarray:
        """The number of bytes of each token."""
        return np.where(self._inside, self._all.sizes[self.tokens], 0)

    @functools.cached_property
    def _inside(self) -> np.ndarray:
        """Whether each token is of text, and not the first or last one of a document."""
        inside = np.ones(self.offsets[-1], bool)
        inside[self.offsets[:-1]] = inside[self.offsets[1:] - 1] = False
        return inside

    def document(self, index: int) -> np.ndarray:
        """The tokens of a document, with bos and eos."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def segment(word: str, ranks: Mapping[tuple[str, str], int], rate: float, rng: random.Random) -> list[str]:
    """BPE of a word in which each possible merge is left out with probability `rate`, again in every step.

    Source: Provilkov et al. 2020 (BPE-Dropout), algorithm 1.
    """
    parts = list(word)
    while True:
        pairs = enumerate(itertools.pairwise(parts))
        left = [(ranks[pair], i) for i, pair in pairs if pair in ranks and rng.random() >= rate]
        if not left:
            return parts
        _, i = min(left)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def merges(tokenizer: Tokenizer) -> dict[tuple[str, str], int]:
    """Pair of symbols -> rank of their merge; {} if the tokenizer has none."""
    pairs = json.loads(tokenizer.content)["model"].get("merges", ())
    return {tuple(pair.split(" ") if isinstance(pair, str) else pair): i for i, pair in enumerate(pairs)}


def _write(source: Source, tokenizer: Tokenizer, rate: float, folder: Path) -> None:
    backend, offsets = tokenizer.backend, [0]
    index: dict[str, int] = {}
    bar = tqdm(range(len(source)), f"splitting {source.name}", unit=" texts", **BAR)
    with open(folder / "words.uint32", "wb") as words:
        for document in bar:
            indices = [
                index.setdefault(word, len(index))
                for text in source.pieces(document)
                for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)
            ]
            np.array(indices, np.uint32).tofile(words)
            offsets.append(offsets[-1] + len(indices))
    np.array(offsets, np.int64).tofile(folder / "offsets.int64")
    ranks, rng = merges(tokenizer), random.Random(0)
    token_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    bar = tqdm(index, "drawing segmentations", unit=" words", **BAR)
    with (
        open(folder / f"ids.{token_type}", "wb") as ids,
        open(folder / "lengths.uint32", "wb") as lengths,
    ):
        for word in bar:
            tokens = [[token.id for token in backend.model.tokenize(word)]] * (1 + DRAWN)
            if len(word) <= MAX_SEGMENTED_BYTES:
                drawn = [segment(word, ranks, rate, rng) for _ in range(DRAWN)]
                tokens[1:] = [[backend.token_to_id(part) for part in parts] for parts in drawn]
            np.array(list(itertools.chain(*tokens)), token_type).tofile(ids)
            np.array([len(row) for row in tokens], np.uint32).tofile(lengths)
