"""Text for replaced-token detection: masked rows, beside the rows that they are of."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig

DRAWN = 1
"""The last number of the seed of a row's draws, which are not those of its masks."""


@dataclass(frozen=True)
class ReplacedDataConfig(MaskedDataConfig):
    """Documents of text with masked tokens that a generator replaces."""

    next_sentence: bool = False  # rows of two texts are not for this objective


@dataclass(frozen=True)
class Replacing:
    """A transform of a `DataLoader`: the batch of `masking`, all of whose chosen tokens are `mask`.

    It adds `original` (b, t), the tokens before; `real` (b, t), float32, 1 for a token and 0 for padding; and
    `draws` (b,), uint32, a seed for each row, so that what is drawn depends on the place of the row in the
    run, and not on how a batch is divided.
    """

    masking: Callable[..., dict[str, np.ndarray]]
    mask: int
    seed: int

    def __call__(self, batch: dict[str, np.ndarray], places: np.ndarray) -> dict[str, np.ndarray]:
        """The batch with masks; `places` (b,) are the rows' places in the run."""
        masked = self.masking(batch, places)
        tokens_bt = batch["tokens"].copy()
        rows, columns = np.nonzero(masked["guessed"])
        tokens_bt[rows, masked["places"][rows, columns]] = self.mask
        rngs = (np.random.default_rng([self.seed, place, DRAWN]) for place in places)
        return masked | {
            "tokens": tokens_bt,
            "original": batch["tokens"],
            "real": (batch["segments"] > 0).astype(np.float32),
            "draws": np.array([rng.integers(2**32) for rng in rngs], np.uint32),
        }


class ReplacedData(MaskedData):
    """The text of a config in rows with masks; raises as `Corpus`."""

    def masking(self, seed: int) -> Callable[..., dict[str, np.ndarray]]:
        """The transform that masks the rows of a batch."""
        return Replacing(super().masking(seed), self.special_tokens.mask, seed)
