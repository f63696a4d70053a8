"""Packed rows of text of which a random share is masked, for masked diffusion."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer.data.loader import DataLoader
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer

LEAST = 1e-3
"""The smallest share of masked tokens, whose inverse is a weight."""

GOLDEN = (np.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Noise:
    """A transform of a `DataLoader`: masks each target of a row with probability r, and makes the row of
    targets the input.

    `guessed` (b, t) float32 is 1 / r at a masked token, and 0 elsewhere. Row number p of a run has
    r = u + p (sqrt(5) - 1) / 2 modulo 1, with u uniform by the seed: any rows in succession have shares that
    are spread evenly over [0.001, 1), which is the low-discrepancy sampler of Sahoo et al. 2024 (section 3.4)
    for batches of any size. Tokens with weight 0, such as the start of another document, are not read.
    """

    mask: int
    seed: int

    def __call__(self, batch: dict[str, np.ndarray], places: np.ndarray) -> dict[str, np.ndarray]:
        """The batch with noise; `places` (b,) are the rows' places in the run."""
        targets_bt, counted_bt = batch["targets"], batch["weights"] > 0
        first = np.random.default_rng(self.seed).random()
        share_b1 = LEAST + (1 - LEAST) * ((first + places * GOLDEN) % 1)[:, None]
        draws = [np.random.default_rng([self.seed, place]).random(targets_bt.shape[1]) for place in places]
        masked_bt = (np.stack(draws) < share_b1) & counted_bt
        return batch | {
            "tokens": np.where(masked_bt, self.mask, targets_bt).astype(np.int32),
            "segments": batch["segments"] * counted_bt,
            "guessed": (masked_bt / share_b1).astype(np.float32),
        }


class NoisedData(TextData):
    """The text of a config in packed rows with noise; raises as `Corpus`."""

    def __init__(self, config: TextDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        super().__init__(config, tokenizer)
        self.special_tokens = SpecialTokens.of(self.tokenizer)

    def blank(self) -> None:
        """None: rows have more arrays than those of `TextData`."""

    def loader(self, split: str, batch_size: int, *, seed: int = 0, **options: Any) -> DataLoader:
        """Batches of a split, with new masks each time a row is drawn."""
        noise = Noise(self.special_tokens.mask, seed)
        return super().loader(split, batch_size, seed=seed, transform=noise, **options)
