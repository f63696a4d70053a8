"""Causal language modelling: predict each token from the tokens before it."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from experiments.base import TextObjective
from experiments.evaluation.evaluators import compressed
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.completion import ContextWindow, TextGenerator
from transformer.decoding.sampling import SamplingConfig
from transformer.decoding.speculative import SpeculativePair
from transformer.errors import UserError
from transformer.evaluation.attention_weights import (
    AttentionMap,
    attention_weights,
    first_tokens,
    token_names,
)
from transformer.evaluation.embeddings import states_of
from transformer.evaluation.scoring import Row, tokens_and_prompt_length
from transformer.layers.attention.products import attention_products
from transformer.models.decoder import DecoderConfig, DecoderStepper
from transformer.models.transforms.reduced import check_cache
from transformer.run_folder import RunFolder
from transformer.training.experiment import Params
from transformer.training.hooks import Hook
from transformer.training.losses.token_losses import LossConfig
from transformer.training.run_config import RunConfig, check_row_length


@dataclass(frozen=True)
class LanguageModelingConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: DecoderConfig
    data: TextDataConfig
    loss: LossConfig
    sample: SamplingConfig

    scheduled: ClassVar[tuple[str, ...]] = ("batch_size", "sequence_length", "window")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)
        if self.sample.cache != "auto":
            check_cache("sample.cache", self.sample.cache, self.model.has_attention)


class LanguageModeling(TextObjective):
    """A decoder trained on packed documents; the loss is -log p(token | those before it), in nats."""

    Config: type[LanguageModelingConfig] = LanguageModelingConfig
    decoding = "sample"
    continues = True
    is_language_model = True
    counts_from_a_beginning = True
    """Whether positions count from the start of a text, so that long texts have positions not seen in
    training."""
    _draft: tuple[DecoderStepper, int] | None = None

    def __init__(self, config: LanguageModelingConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is trained on the training text."""
        self.config, self.data = config, TextData.of(config.data, tokenizer)
        self.model = config.model.build(self.data.tokenizer.vocab_size)

    def cut(self, batch: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
        """Packed rows cut into rows of `length` tokens."""
        from transformer.data.text.cutting import cut_rows

        return cut_rows(batch, length)

    @property
    def remembered(self) -> int:
        """The number of tokens before those of a row that attention covers."""
        return 0

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        stack, length = self.config.model.stack(causal=True), self.config.data.sequence_length
        return attention_products(stack, length, start=self.remembered, causal=True)

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Completions of the configured prompt, and attention maps of the first tokens of the validation
        text."""
        if self.config.sample.end_tokens:
            _ = self.ends  # an unknown one is refused before training
        return super().hooks(folder)

    def sample(self, params: Params) -> str:
        """See `TextObjective`."""
        prompt = self.config.sample.prompt
        return "\n\n".join(prompt + text for text in next(self.predict(params, [prompt])))

    def attended(self, params: Params) -> AttentionMap | None:
        """See `TextObjective`."""
        if not self.config.model.has_attention:
            return None
        return first_tokens(self.attention(params, next(self.data.text("validation"), "")))

    def stepper(self, params: Params) -> DecoderStepper:
        """The model behind the `Stepper` protocol of decoding."""
        return DecoderStepper.of(self.model, self.reduced(params), self.config.sample.cache)

    def states(self, params: Params, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """The span (start, end) of each token of a text, truncated to `model.max_length`, and the last
        layer's states (t, d)."""
        bos, most = self.data.tokenizer.bos_id, self.config.model.max_length
        hidden = functools.partial(self._hidden, params)
        return states_of(hidden, self.data.tokenizer, text, before=[bos], most=most)

    @functools.cached_property
    def _hidden(self) -> Callable[..., jax.Array]:
        def hidden(params: Params, tokens_bt: jax.Array, segments_bt: jax.Array) -> jax.Array:
            return self.model.apply({"params": params}, tokens_bt, segments_bt=segments_bt, method="hidden")

        return jax.jit(hidden)

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text `sample.num_samples` continuations, without the text itself."""
        return self._generator(params).generate(self._prompts(texts, first), jax.random.key(seed), first)

    def stream(self, params: Params, text: str, seed: int = 0) -> Iterator[str] | None:
        """The only continuation of a text, in pieces; None with several samples."""
        if self.config.sample.num_samples > 1:
            return None
        (prompt,) = self._prompts([text])
        return self._generator(params).stream(prompt, jax.random.key(seed))

    def use_draft(self, draft: Any, params: Params, draft_tokens: int = 4) -> None:
        """Makes `predict` and `stream` decode speculatively with a smaller language model.

        Raises:
          UserError: it is not a language model, or has another tokenizer or a smaller `model.max_length`.
        """
        if not isinstance(draft, LanguageModeling):
            raise UserError(f"--draft: it is a run of {draft.config.experiment}; expected a language model")
        if draft.data.tokenizer.identity != self.data.tokenizer.identity:
            raise UserError(
                "--draft: its tokenizer is a different one; train it with this run's tokenizer.json"
            )
        theirs, ours = draft.config.model.max_length, self.config.model.max_length
        if theirs < ours:
            raise UserError(f"--draft: its model.max_length is {theirs}; expected at least this run's {ours}")
        if draft_tokens < 1:
            raise UserError(f"--draft_tokens: {draft_tokens}; expected at least 1")
        self._draft = draft.stepper(params), draft_tokens

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a completion.

        Raises:
          UserError: the tokenizer does not have one of `sample.end_tokens`.
        """
        ids = [self.data.tokenizer.eos_id]
        for name in self.config.sample.end_tokens:
            if (i := self.data.tokenizer.find(name)) is None:
                raise UserError(f"sample.end_tokens: {name!r}; the tokenizer has no such token")
            ids.append(i)
        return tuple(dict.fromkeys(ids))

    def _generator(self, params: Params) -> TextGenerator:
        tokenizer = self.data.tokenizer
        stepper = self.stepper(params)
        pair = SpeculativePair(stepper, *self._draft) if self._draft else None
        eos_id, *further = self.ends
        window = ContextWindow(eos_id, self.config.model.max_length, True, tuple(further))
        return TextGenerator(pair or stepper, tokenizer, self.config.sample, window, continues=True)

    def _prompts(self, texts: Iterable[str], first: int = 0) -> Iterator[list[int]]:
        """The tokens of each text after the start token."""
        tokenizer, c = self.data.tokenizer, self.config
        for number, text in enumerate(texts, first + 1):
            tokens = [tokenizer.bos_id, *tokenizer.encode(text)]
            length = len(tokens) + c.sample.max_new_tokens - 1  # the last new token is never read
            if length > min(c.model.max_length, c.data.sequence_length):
                self._note_length(number, len(tokens), length)
            yield tokens

    def _note_length(self, number: int, prompt: int, length: int) -> None:
        """Prints a note if `length` tokens exceed the context of the model or of its training."""
        c = self.config
        most, new, trained = c.model.max_length, c.sample.max_new_tokens, c.data.sequence_length
        if prompt > most:
            self.note(
                "prompt",
                f"text {number}: {prompt:,} tokens are more than model.max_length {most:,}; only the "
                f"last {most:,} are read",
            )
        elif length > most:
            self.note(
                "window",
                f"text {number}: its {prompt:,} tokens and {new:,} new ones are more than "
                f"model.max_length {most:,}; when the context is full, its older half is dropped",
            )
        if self.counts_from_a_beginning and min(length, most) > trained:
            self.note(
                "length",
                f"text {number}: with {new:,} new tokens the context has {min(length, most):,}; the model "
                f"was trained on {trained:,} (data.sequence_length), and longer texts may be nonsense",
            )

    def attention(self, params: Params, text: str, layer: int = -1) -> AttentionMap:
        """The attention weights (h, t, t) of a layer (-1: the last) over the start token and a text,
        truncated to `model.max_length`, and the names of query and key tokens."""
        tokenizer = self.data.tokenizer
        tokens = [tokenizer.bos_id, *tokenizer.encode(text)][: self.config.model.max_length]
        names = token_names(tokenizer, tokens, {tokenizer.bos_id: "start"})
        return attention_weights(self.model, params, tokens, layer=layer), names, names

    def row(self, text: str, continuation: str) -> Row:
        """The start token, the text and its continuation; the first tokens of a text that is too long are
        dropped."""
        tokenizer, most = self.data.tokenizer, self.longest
        tokens, own = tokens_and_prompt_length(tokenizer, text, continuation)
        if (count := len(tokens) - own) > most:
            raise UserError(f"a continuation of {count} tokens; the model reads {most} (model.max_length)")
        unread = max(0, len(tokens) - most)
        return Row([tokenizer.bos_id, *tokens[unread:]], 1 + own - unread, unread=unread)

    def example_flags(self) -> list[str]:
        """Three completions of the configured prompt."""
        return [f"--prompt={self.config.sample.prompt}", "--num_samples=3"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The model's bits per byte, if measured, and those of gzip and xz on the same text, for each source
        of a mixture."""
        lines = []
        for name, data in self.data.parts("validation").items():
            if (key := f"eval/{name}/bits_per_byte" if name else "eval/bits_per_byte") not in measured:
                continue
            text = "".join(data.text("validation")).encode()
            bits, of = compressed(text), f" of {name}" if name else ""
            listed = f"this model {measured[key]:.3f}, gzip -9 {bits['gzip']:.3f}, xz -9e {bits['xz']:.3f}"
            lines.append(f"bits per byte of {len(text):,} bytes of validation text{of}: {listed}")
        return lines
