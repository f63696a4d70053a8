"""Word vectors by skip-grams with negative sampling (word2vec)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluators import named_evaluators
from transformer.data.skip_grams import SkipGramData, SkipGramDataConfig, SkipGrams
from transformer.data.tokenizers import Tokenizer
from transformer.evaluation.embeddings import word_vectors
from transformer.evaluation.likelihood import likelihood_evaluator
from transformer.models.word_embedding import SkipGram, SkipGramConfig
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Experiment, Params, Put
from transformer.training.hooks import Evaluator, Hook, Samples
from transformer.training.metrics import Sum
from transformer.training.negative_sampling import NegativeSamplingConfig, negative_sampling, pairs
from transformer.training.run_config import RunConfig

SHOWN = slice(200, 3000, 400)
"""Of the words from the commonest down, those whose neighbours are written as samples."""


@dataclass(frozen=True)
class WordEmbeddingConfig(RunConfig):
    """A whole run: one group of keys for each part."""

    model: SkipGramConfig
    data: SkipGramDataConfig
    loss: NegativeSamplingConfig


class WordEmbedding(Experiment):
    """Two tables trained on windows of words, with the loss of `transformer.training.negative_sampling`."""

    Config = WordEmbeddingConfig

    def __init__(self, config: WordEmbeddingConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = SkipGramData(config.data, tokenizer=tokenizer)
        self.model: Any = SkipGram(config.model, self.data.tokenizer.vocab_size)

    def init(self, rng: jax.Array) -> Any:
        """The model's parameters, boxed with their logical axes."""
        one = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, one, one)["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per pair of words; nothing is random in it, for noise is part of the batch."""
        near_bts, noise_btk = self.model.apply({"params": params}, batch["tokens"], batch["noise"])
        pairs_bts = pairs(batch["segments"], batch["reach"])
        return {"loss": negative_sampling(near_bts, noise_btk, pairs_bts, self.config.loss.negatives)}

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of pairs."""
        return {"loss": jnp.sum(pairs(batch["segments"], batch["reach"]), dtype=jnp.float32)}

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """The loss of a split, of which exp is no perplexity."""
        likelihood = likelihood_evaluator(self, self.loader(split), put, perplexity=False)
        return {"eval": likelihood, **named_evaluators(self, put, split)}

    def flops_per_token(self, params: Params) -> float:
        """6 d for each word of its row and of noise that a word is compared with."""
        return 6.0 * self.config.model.d_model * (self.config.data.sequence_length + self.config.data.noise)

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Neighbours of some words, now and then."""

        def sample(params: Params) -> str:
            words = self._shown()
            found = self.predict(params, words)
            return "\n".join(f"{word}: {line}" for word, (line,) in zip(words, found, strict=True))

        return [Samples(self.config.train.sample_every, sample, folder.samples)]

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each word the nearest ones with their cosines, in one line; for a text of several words, those
        nearest to the mean of its words; an empty line where no word is known. `seed` changes nothing."""
        vectors = word_vectors(params, self.data.tokenizer)
        for text in texts:
            words = [word for word in text.split() if word in vectors]
            mean_d = np.mean([vectors[word] for word in words], axis=0) if words else np.zeros(0)
            nearest = vectors.nearest(mean_d, exclude=words) if words else []
            yield [", ".join(f"{word} {cosine:.2f}" for word, cosine in nearest)]

    def opening_lines(self) -> list[str]:
        """How many words there are, and how many of them are kept."""
        counts_v = self.data.counts()
        kept = float(counts_v @ SkipGrams(counts_v, self.config.data, 0).keep_v)
        return [
            f"{counts_v.sum():,} words of training text, {np.count_nonzero(counts_v):,} different ones; "
            f"{kept / counts_v.sum():.0%} of them are kept each time"
        ]

    def example_flags(self) -> list[str]:
        """A word to find the neighbours of."""
        return [f"--prompt={self._shown()[0]}"]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """The loss beside that of vectors that tell nothing apart."""
        nothing = (1 + self.config.loss.negatives) * math.log(2)
        loss = measured.get("eval/loss", math.nan)  # of text that has no pair there is none
        return [f"validation loss {loss:.3f} nats a pair; with all scores 0: {nothing:.3f}"]

    def _shown(self) -> list[str]:
        words = [*self.data.tokenizer.words()]
        return words[SHOWN] or words
