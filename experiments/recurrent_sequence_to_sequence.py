"""Text to text with a recurrent encoder-decoder."""

import sys
from dataclasses import dataclass

from experiments.sequence_to_sequence import SequenceToSequence, SequenceToSequenceConfig
from transformer.models.recurrent import RecurrentConfig
from transformer.models.transforms.reduced import check_cache
from transformer.training.experiment import Params
from transformer.training.logging.throughput import pair_flops_per_token
from transformer.training.run_config import RunConfig


@dataclass(frozen=True)
class RecurrentSequenceToSequenceConfig(SequenceToSequenceConfig):
    """The config of a run: one group of keys for each part."""

    model: RecurrentConfig  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Skips the checks of lengths: a model without positions reads any length."""
        RunConfig.__post_init__(self)
        check_cache("generate.cache", self.generate.cache, False)


class RecurrentPairs(SequenceToSequence):
    """`SequenceToSequence` with a recurrent model; data, loss and decoding are the same."""

    Config = RecurrentSequenceToSequenceConfig

    @property
    def longest(self) -> int:
        """Recurrent layers read any number of tokens."""
        return sys.maxsize

    def flops_per_token(self, params: Params) -> float:
        """FLOPs of encoder and decoder per target token; only the decoder's alignment is attention."""
        c, data = self.config.model, self.config.data
        products = 0 if c.attention == "none" else 2 * c.d_model * data.source_length
        return pair_flops_per_token(params, products, data.source_length, data.target_length)
