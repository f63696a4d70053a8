"""Word vectors by skip-gram with negative sampling (word2vec)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import Experiment
from transformer.data.text.skip_grams import SkipGramData, SkipGramDataConfig, SkipGrams
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.evaluation.embeddings import word_vectors
from transformer.models.word_embedding import SkipGram, SkipGramConfig
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params
from transformer.training.hooks import Hook, Samples
from transformer.training.losses.negative_sampling import NegativeSamplingConfig, negative_sampling, pairs
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig
from transformer.visualization.embedding_map import draw_map

SAMPLE_RANKS = slice(200, 3000, 400)
"""Ranks by frequency of the words whose nearest neighbours are written as samples."""

MAPPED = 100
"""The number of words on the map."""


@dataclass(frozen=True)
class WordEmbeddingConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: SkipGramConfig
    data: SkipGramDataConfig
    loss: NegativeSamplingConfig


class WordEmbedding(Experiment):
    """Word and context embeddings with the loss of `transformer.training.losses.negative_sampling`."""

    Config = WordEmbeddingConfig

    def __init__(self, config: WordEmbeddingConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is made from the training text."""
        self.config = config
        self.data = SkipGramData(config.data, tokenizer=tokenizer)
        self.model: Any = SkipGram(config.model, self.data.tokenizer.vocab_size)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, ids, ids)["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per pair of words; the negative samples are part of the batch."""
        near_bts, noise_btk = self.model.apply({"params": params}, batch["tokens"], batch["noise"])
        pairs_bts = pairs(batch["segments"], batch["reach"])
        return {"loss": negative_sampling(near_bts, noise_btk, pairs_bts, self.config.loss.negatives)}

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of (word, context) pairs."""
        return {"loss": jnp.sum(pairs(batch["segments"], batch["reach"]), dtype=jnp.float32)}

    def flops_per_token(self, params: Params) -> float:
        """6 d per word of the row and per negative sample: each is multiplied with every word."""
        return 6.0 * self.config.model.d_model * (self.config.data.sequence_length + self.config.data.noise)

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Samples, the nearest neighbours of some words, and a map of the commonest words."""

        def sample(params: Params) -> str:
            words = self._shown()
            lines = self.predict(params, words)
            return "\n".join(f"{word}: {line}" for word, (line,) in zip(words, lines, strict=True))

        def mapped(params: Params) -> tuple[np.ndarray, list[str]] | None:
            vectors = word_vectors(params, self.data.tokenizer)
            words = vectors.common(MAPPED)
            return (np.stack([vectors[word] for word in words]), words) if len(words) >= 3 else None

        samples = Samples(self.config.train, folder, sample)
        return [samples, self.pictures(folder, folder.maps, mapped, draw_map)]

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """One line for each text: the words nearest to the mean of its words, with their cosines; empty if no
        word is known. `seed` is ignored."""
        vectors = word_vectors(params, self.data.tokenizer)
        for text in texts:
            words = [word for word in text.split() if word in vectors]
            mean_d = np.mean([vectors[word] for word in words], axis=0) if words else np.zeros(0)
            nearest = vectors.nearest(mean_d, exclude=words) if words else []
            yield [", ".join(f"{word} {cosine:.2f}" for word, cosine in nearest)]

    def data_lines(self) -> list[str]:
        """The number of words, and the share that subsampling keeps."""
        counts_v = self.data.counts()
        count = float(counts_v @ SkipGrams(counts_v, self.config.data, 0).keep_v)
        return [
            f"{counts_v.sum():,} words of training text, {np.count_nonzero(counts_v):,} different ones; "
            f"{count / counts_v.sum():.0%} of them are kept on average"
        ]

    def example_flags(self) -> list[str]:
        """A word whose neighbours are asked for."""
        return [f"--prompt={self._shown()[0]}"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The loss, and the loss with all scores 0."""
        nothing = (1 + self.config.loss.negatives) * math.log(2)
        loss = measured.get("eval/loss", math.nan)  # missing if the validation text has no pair
        return [f"validation loss {loss:.3f} nats per pair; with all scores 0: {nothing:.3f}"]

    def _shown(self) -> list[str]:
        words = [*self.data.tokenizer.words()]
        return words[SAMPLE_RANKS] or words
