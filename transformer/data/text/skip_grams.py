"""Data for skip-gram word vectors: words, context windows and negative samples."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transformer.config import NonnegativeFloat, Positive
from transformer.data.cache.token_cache import TokenCache
from transformer.data.loader import DataLoader
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.errors import UserError

AT_ONCE = 1 << 24
"""Tokens that are counted at once, to bound the memory."""


@dataclass(frozen=True)
class SkipGramDataConfig(TextDataConfig):
    """Documents of words, with context windows and negative samples."""

    tokenizer: str = "words"
    window: Positive = 5  # largest context window; each word draws a size from 1 to this
    subsample: NonnegativeFloat = 1e-4  # words of frequency f > this are kept by sqrt(this / f); 0: all
    noise: Positive = 64  # negative samples per row, drawn from count^0.75, shared by its words

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sources:
            raise UserError("sources: frequencies of words are counted in one source; use source")


class SkipGrams:
    """Turns packed rows (b, t) into words, windows and negative samples, drawn for each place in the data
    order.

    A word of frequency f is kept with probability min(1, sqrt(subsample / f)). Kept words are moved to the
    front of their row, so that windows cover more text. The window of a word has 1, 2, ... or `window` kept
    words on either side, with equal probability, within its document and row. The `noise` negative samples of
    a row are drawn from the distribution count^0.75. Ends of documents and unknown words are never kept or
    drawn.

    Source: Mikolov et al. 2013b, sections 2.2 and 2.3; the random reach is that of their word2vec.c.
    """

    def __init__(self, counts_v: np.ndarray, config: SkipGramDataConfig, seed: int) -> None:
        """`counts_v` has the number of occurrences of each word in training; 0 for tokens that are not
        words."""
        frequency_v = counts_v / counts_v.sum()
        ratio_v = np.divide(config.subsample, frequency_v, out=np.zeros(len(counts_v)), where=counts_v > 0)
        self.keep_v = np.minimum(1.0, np.sqrt(ratio_v)) if config.subsample else (counts_v > 0) * 1.0
        self.noise_v = counts_v**0.75 / np.sum(counts_v**0.75)
        self._up_to_v = np.cumsum(self.noise_v)
        self._config, self._seed = config, seed

    def __call__(self, batch: Mapping[str, np.ndarray], places: np.ndarray) -> dict[str, np.ndarray]:
        """`tokens` (b, t) and their `segments`, 0 after the last kept word; the `reach` (b, t) of their
        windows; `noise` (b, k). All are int32, and functions of the seed, the row and its place."""
        t = batch["tokens"].shape[1]
        size = 2 * t + self._config.noise
        drawn = np.stack([np.random.default_rng([self._seed, place]).random(size) for place in places])
        chance_bt, reach_bt, noise_bk = np.split(drawn, [t, 2 * t], axis=1)
        kept_bt = (chance_bt < self.keep_v[batch["tokens"]]) & (batch["segments"] > 0)
        order_bt = np.argsort(~kept_bt, axis=1, kind="stable")
        arrays = {
            "tokens": np.take_along_axis(batch["tokens"], order_bt, axis=1),
            "segments": np.take_along_axis(batch["segments"] * kept_bt, order_bt, axis=1),
            "reach": 1 + reach_bt * self._config.window,
            "noise": np.searchsorted(self._up_to_v[:-1], noise_bk * self._up_to_v[-1], side="right"),
        }
        return {name: values.astype(np.int32) for name, values in arrays.items()}


class SkipGramData(TextData):
    """The documents of a config; raises as `Corpus`."""

    config: SkipGramDataConfig

    def loader(self, split: str, batch_size: int, *, seed: int = 0, **options) -> DataLoader:
        """Batches of `SkipGrams`."""
        transform = SkipGrams(self.counts(), self.config, seed)
        return super().loader(split, batch_size, seed=seed, transform=transform, **options)

    def blank(self) -> None:
        """None: rows have more arrays than those of `TextData`."""

    def counts(self) -> np.ndarray:
        """The number of occurrences of each token (v,) in the training split; 0 for the end of documents and
        the unknown word.

        Raises:
          UserError: there is no other token.
        """
        tokenizer = self.tokenizer
        cache = TokenCache.of(self.source("train"), tokenizer, self.folder)
        counts_v = np.zeros(tokenizer.vocab_size, np.int64)
        for start in range(0, len(cache.tokens), AT_ONCE):
            part = np.asarray(cache.tokens[start : start + AT_ONCE])
            counts_v += np.bincount(part, minlength=tokenizer.vocab_size)
        counts_v[[i for i in (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unknown_id) if i is not None]] = 0
        if not counts_v.any():
            raise UserError(f"data.source: {self.source('train').name} has no word that data.tokenizer knows")
        return counts_v
