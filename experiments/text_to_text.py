"""Text to text with a decoder only: the source and a separator are the prompt, the target is the
completion."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from experiments.base import TextObjective
from experiments.sequence_to_sequence import SequenceToSequence, SequenceToSequenceConfig
from transformer.data.pairs.pair_packing import JoinedPairs, PackedPairs
from transformer.data.pairs.text_pairs import PairDataConfig
from transformer.decoding.beam import shorten
from transformer.decoding.stepper import Stepper
from transformer.decoding.suppressed import suppressed, with_first_token
from transformer.errors import UserError
from transformer.evaluation.attention_weights import AttentionMap, attention_weights, token_names
from transformer.evaluation.scoring import Row
from transformer.layers.attention.products import attention_products
from transformer.models.decoder import DecoderConfig, DecoderStepper
from transformer.models.transforms.reduced import check_cache
from transformer.training.experiment import Params
from transformer.training.run_config import RunConfig


@dataclass(frozen=True)
class JoinedDataConfig(PairDataConfig):
    """Data of pairs that are joined to one sequence each."""

    loss_on: Literal["target", "all"] = "target"  # tokens that the loss is computed on


@dataclass(frozen=True)
class TextToTextConfig(SequenceToSequenceConfig):
    """The config of a run: one group of keys for each part."""

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
        check_cache("generate.cache", self.generate.cache, self.model.has_attention)


class TextToText(SequenceToSequence):
    """A decoder trained on joined pairs; the loss is -log p(token | those before it, source)."""

    Config = TextToTextConfig
    # Of one sequence, where the base class has an encoder.
    init = TextObjective.init
    hidden = TextObjective.hidden
    flops_per_token = TextObjective.flops_per_token

    @staticmethod
    def packing(config: Any) -> Callable[..., PackedPairs]:
        """Packs source and target as one sequence."""
        return functools.partial(JoinedPairs, loss_on=config.data.loss_on)

    @property
    def tokens_per_example(self) -> int:
        """The length of a row."""
        return self.config.data.source_length + self.config.data.target_length

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        stack = self.config.model.stack(causal=True)
        return attention_products(stack, self.tokens_per_example, causal=True)

    def prompt(self, source: str) -> list[int]:
        """The start token, the source and its end-of-sequence token."""
        return [self.data.tokenizer.bos_id, *self.data.encode_source(source)]

    @property
    def longest_prompt(self) -> int:
        """The most source tokens that are read, plus the start token."""
        return 1 + self.config.data.source_length

    def row(self, text: str, continuation: str) -> Row:
        """The prompt and the target with its end-of-sequence token, as one sequence."""
        prompt = self.prompt(text)
        read = shorten(prompt, self.longest_prompt)
        target = self.target(continuation, self.longest + 1 - len(read))
        return Row([*read, *target], len(read), unread=len(prompt) - len(read))

    def stepper(self, params: Params) -> Stepper:
        """The model behind the `Stepper` protocol of decoding."""
        stepper = DecoderStepper.of(self.model, self.reduced(params), self.config.generate.cache)
        c, tokenizer = self.config.generate, self.data.tokenizer.targets
        return with_first_token(suppressed(stepper, c.suppress, tokenizer), c.first, tokenizer)

    def attention(self, params: Params, source: str, layer: int = -1) -> AttentionMap:
        """The attention weights (h, t, s) of a layer (-1: the last) for the t tokens of the best target over
        the s tokens of prompt and target, and the names of both."""
        tokenizer = self.data.tokenizer
        read = shorten(self.prompt(source), self.longest_prompt)
        ids, _ = next(iter(self._translate(params, [source])))[0]
        special = {tokenizer.bos_id: "start", tokenizer.eos_id: "end"}
        weights_hts = attention_weights(self.model, params, [*read, *ids], layer=layer)[:, len(read) - 1 :]
        written = token_names(tokenizer.targets, [*ids, tokenizer.eos_id], special)
        source_names = token_names(tokenizer, read[1:-1], special)
        return weights_hts, written, ["start", *source_names, "end", *written[:-1]]
