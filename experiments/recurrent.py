"""Text to text with a recurrent encoder-decoder: only the model differs from a Transformer's."""

from dataclasses import dataclass

from experiments.sequence_to_sequence import SequenceToSequence, SequenceToSequenceConfig
from transformer.models.recurrent import RecurrentConfig


@dataclass(frozen=True)
class RecurrentSequenceToSequenceConfig(SequenceToSequenceConfig):
    """A whole run: one group of keys for each part, listed in `configs/base/`."""

    model: RecurrentConfig  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Nothing: without positions every length is possible."""


class RecurrentSequenceToSequence(SequenceToSequence):
    """A recurrent encoder-decoder on packed pairs, with the data, loss and search of the Transformer's."""

    Config = RecurrentSequenceToSequenceConfig
