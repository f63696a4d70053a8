"""Text to text with a decoder alone: the source and its end are the prompt, the target is the completion."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from experiments.attending import AttendingDecoder, Look, names
from experiments.sequence_to_sequence import SequenceToSequence, SequenceToSequenceConfig
from experiments.token_prediction import TokenPrediction
from transformer.data.pair_packing import JoinedPairs, PackedPairs
from transformer.data.pairs import PairDataConfig
from transformer.decoding.beam import shorten
from transformer.errors import UserError
from transformer.evaluation.scoring import Row
from transformer.models.decoder import DecoderConfig
from transformer.models.decoder_stepper import DecoderStepper
from transformer.training.experiment import Params
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.run import RunConfig


@dataclass(frozen=True)
class JoinedDataConfig(PairDataConfig):
    """Pairs joined to one sequence each; `configs/base/` says what each key means."""

    loss_on: Literal["target", "all"] = "target"


@dataclass(frozen=True)
class TextToTextConfig(SequenceToSequenceConfig):
    """A whole run: one group of keys for each part, listed in `configs/base/`."""

    model: DecoderConfig  # type: ignore[assignment]
    data: JoinedDataConfig

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        length, most = self.data.source_length + self.data.target_length, self.model.max_length
        if length > most:
            raise UserError(
                f"data.source_length: with data.target_length {length}, longer than model.max_length {most}"
            )
        longest = self.data.source_length + self.generate.max_new_tokens
        if longest > most:
            raise UserError(
                f"generate.max_new_tokens: with data.source_length {longest} tokens, longer than "
                f"model.max_length {most}"
            )


class TextToText(SequenceToSequence, AttendingDecoder):
    """A decoder trained on joined pairs; the loss is -log p(token | those before it, source)."""

    Config = TextToTextConfig
    READS = TokenPrediction.READS
    MARKS = TokenPrediction.MARKS

    @staticmethod
    def packing(config: Any) -> Callable[..., PackedPairs]:
        """Source and target as one sequence."""
        return functools.partial(JoinedPairs, loss_on=config.data.loss_on)

    @property
    def tokens_per_example(self) -> int:
        """The length of a row."""
        return self.config.data.source_length + self.config.data.target_length

    def flops_per_token(self, params: Params) -> float:
        """6 N plus the attention's part (see `transformer.training.flops`)."""
        c = self.config.model
        width = c.num_heads * c.key_width
        return train_flops_per_token(matmul_parameters(params), c.num_layers, width, self.tokens_per_example)

    def prompt(self, source: str) -> list[int]:
        """The beginning, the source and its end."""
        return [self.data.tokenizer.bos_id, *self.data.encode_source(source)]

    @property
    def longest_prompt(self) -> int:
        """The source's greatest length and the beginning."""
        return 1 + self.config.data.source_length

    def row(self, text: str, continuation: str) -> Row:
        """The beginning, the source and its end, the target and its end, as one sequence."""
        prompt = self.prompt(text)
        read = shorten(prompt, self.longest_prompt)
        target = self.target(continuation, self.longest + 1 - len(read))
        return Row([*read, *target], len(read), unread=len(prompt) - len(read))

    def stepper(self, params: Params) -> DecoderStepper:
        """The model as decoding sees it."""
        return DecoderStepper.of(self.model, params)

    def attention(self, params: Params, source: str, layer: int = -1) -> Look:
        """Where the best target looks while it is written: weights (h, t, s) of a layer (from 0, or back from
        -1), the t tokens written, and the s read by then, the source's and the target's own."""
        tokenizer = self.data.tokenizer
        read = shorten(self.prompt(source), self.longest_prompt)
        ids, _ = next(iter(self._translate(params, [source])))[0]
        special = {tokenizer.bos_id: "start", tokenizer.eos_id: "end"}
        written, seen = names(tokenizer, [*ids, tokenizer.eos_id], special), names(tokenizer, ids, special)
        weights_hts = self.weights(params, [*read, *ids], layer=layer)[:, len(read) - 1 :]
        return weights_hts, written, ["start", *names(tokenizer, read[1:-1], special), "end", *seen]
