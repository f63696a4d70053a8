"""Text to text with a recurrent encoder-decoder: only the model differs from a Transformer's."""

import sys
from dataclasses import dataclass

from experiments.sequence_to_sequence import SequenceToSequence, SequenceToSequenceConfig
from transformer.models.recurrent import RecurrentConfig
from transformer.training.experiment import Params
from transformer.training.run_config import RunConfig
from transformer.training.throughput import pair_flops_per_token


@dataclass(frozen=True)
class RecurrentSequenceToSequenceConfig(SequenceToSequenceConfig):
    """A whole run: one group of keys for each part."""

    model: RecurrentConfig  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Without positions every length is possible."""
        RunConfig.__post_init__(self)


class RecurrentPairs(SequenceToSequence):
    """A recurrent encoder-decoder on packed pairs, with the data, loss and search of the Transformer's."""

    Config = RecurrentSequenceToSequenceConfig

    @property
    def longest(self) -> int:
        """Recurrent layers read any number of tokens."""
        return sys.maxsize

    def flops_per_token(self, params: Params) -> float:
        """Those of both sides for each token of the target; only the alignment attends."""
        c, data = self.config.model, self.config.data
        layers = 0, 0, int(c.attention != "none")
        return pair_flops_per_token(params, layers, c.d_model, data.source_length, data.target_length)
