"""Causal language modelling: predict each token from those before it."""

import functools
import gzip
import lzma
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from experiments.attending import AttendingDecoder, Look, names, pictured
from experiments.embeddings import states_of
from experiments.objective import check_row_length
from experiments.pictures import AttentionMaps
from experiments.scoring import ScoringText
from experiments.writing import Writer
from transformer.data.text import TextData, TextDataConfig
from transformer.data.tokenizers import Tokenizer
from transformer.decoding.completion import Reading
from transformer.decoding.sampling import SamplingConfig
from transformer.errors import UserError
from transformer.evaluation.scoring import Row, continued
from transformer.models.decoder import DecoderConfig
from transformer.models.decoder_stepper import DecoderStepper
from transformer.training.experiment import Params
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook, Samples
from transformer.training.run import RunConfig
from transformer.training.token_losses import LossConfig


@dataclass(frozen=True)
class LanguageModelingConfig(RunConfig):
    """A whole run: one group of keys for each part, listed in `configs/base/`."""

    model: DecoderConfig
    data: TextDataConfig
    loss: LossConfig
    sample: SamplingConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)


class LanguageModeling(ScoringText, AttendingDecoder):
    """A decoder trained on packed documents; the loss is -log p(token | those before it), in nats."""

    Config: type[LanguageModelingConfig] = LanguageModelingConfig
    continues = True
    counts_from_a_beginning = True
    """Whether there are places in a text that no row of the training data has."""

    def __init__(self, config: LanguageModelingConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = TextData(config.data, tokenizer=tokenizer)
        self.model = config.model.build(self.data.tokenizer.vocab_size)

    @property
    def tokens_per_example(self) -> int:
        """The length of a row."""
        return self.config.data.sequence_length

    @property
    def attended(self) -> int:
        """How many tokens attention goes over."""
        return self.config.data.sequence_length

    def flops_per_token(self, params: Params) -> float:
        """6 N plus the attention's part (see `transformer.training.flops`)."""
        c = self.config.model
        width = c.num_heads * c.key_width
        return train_flops_per_token(matmul_parameters(params), c.num_layers, width, self.attended)

    def hooks(self, workdir: Path) -> list[Hook]:
        """A completion of the configured prompt, now and then, and a picture of where the first tokens of the
        validation text look."""

        def sample(params: Params) -> str:
            prompt = self.config.sample.prompt
            return "\n\n".join(prompt + text for text in next(self.predict(params, [prompt])))

        def look(params: Params) -> Look:
            return pictured(self.attention(params, next(self.data.text("validation"), "")))

        c = self.config.train
        return [Samples(c.sample_every, sample, workdir / "samples"), AttentionMaps(c, look, workdir)]

    def stepper(self, params: Params) -> DecoderStepper:
        """The model as decoding sees it."""
        return DecoderStepper.of(self.model, params)

    def states(self, params: Params, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Where each token of a text stands in it, and the last layer's states there (t, d), which know the
        text up to that token; both without what does not fit into `model.max_length`."""
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
        """For each text its continuations, `sample.num_samples` of them, without the text itself."""
        writer = self._writer(params)
        return writer.answers(self._prompts(texts, first), jax.random.key(seed), first)

    def stream(self, params: Params, text: str, seed: int = 0) -> Iterator[str] | None:
        """The one continuation of a text, in pieces; None where there are several."""
        if self.config.sample.num_samples > 1:
            return None
        (prompt,) = self._prompts([text])
        return self._writer(params).pieces(prompt, jax.random.key(seed))

    def _writer(self, params: Params) -> Writer:
        tokenizer = self.data.tokenizer
        reading = Reading(tokenizer.eos_id, self.config.model.max_length, rolls=True)
        return Writer(self.stepper(params), tokenizer, self.config.sample, reading, continues=True)

    def _prompts(self, texts: Iterable[str], first: int = 0) -> Iterator[list[int]]:
        """The tokens of texts, each the beginning of a document; says what the model cannot see of them, or
        was not trained for."""
        tokenizer, c = self.data.tokenizer, self.config
        most, new, trained = c.model.max_length, c.sample.max_new_tokens, c.data.sequence_length
        for number, text in enumerate(texts, first + 1):
            tokens = [tokenizer.bos_id, *tokenizer.encode(text)]
            # The last new token is never read.
            length = len(tokens) + new - 1
            if len(tokens) > most:
                self.note(
                    "prompt",
                    f"text {number}: {len(tokens):,} tokens are more than model.max_length {most:,}; of such "
                    f"texts the last {most:,} tokens are read",
                )
            elif length > most:
                self.note(
                    "window",
                    f"text {number}: its {len(tokens):,} tokens and {new:,} new ones are more than "
                    f"model.max_length {most:,}; whenever so many are read, the older half is forgotten",
                )
            if self.counts_from_a_beginning and min(length, most) > trained:
                self.note(
                    "length",
                    f"text {number}: with {new:,} new tokens {min(length, most):,} are read at once; the "
                    f"model was trained on {trained:,} (data.sequence_length), and beyond may write nonsense",
                )
            yield tokens

    def attention(self, params: Params, text: str, layer: int = -1) -> Look:
        """With which weights (h, t, t) each token of a text sees those before it in a layer (from 0, or back
        from -1), and the tokens, twice: the beginning's and the text's, as many as the model reads."""
        tokenizer = self.data.tokenizer
        tokens = [tokenizer.bos_id, *tokenizer.encode(text)][: self.config.model.max_length]
        shown = names(tokenizer, tokens, {tokenizer.bos_id: "start"})
        return self.weights(params, tokens, layer=layer), shown, shown

    def row(self, text: str, continuation: str) -> Row:
        """The beginning, the text and its continuation, as one text. Of more tokens than the model reads
        the text's first are left out."""
        tokenizer, most = self.data.tokenizer, self.longest
        tokens, own = continued(tokenizer, text, continuation)
        if (count := len(tokens) - own) > most:
            raise UserError(f"a continuation of {count} tokens; the model reads {most} (model.max_length)")
        unread = max(0, len(tokens) - most)
        return Row([tokenizer.bos_id, *tokens[unread:]], 1 + own - unread, unread=unread)

    def opening_lines(self) -> list[str]:
        """Nothing: every token of the data is in a row."""
        return []

    def example_flags(self) -> list[str]:
        """Three completions of the configured prompt."""
        return [f"--prompt={self.config.sample.prompt}", "--num_samples=3"]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """The model's bits per byte, where it has any, beside those of two compressors on the same text."""
        if "eval/bits_per_byte" not in measured:
            return []
        text = "".join(self.data.text("validation")).encode()
        bits = {
            "this model": measured["eval/bits_per_byte"],
            "gzip -9": 8 * len(gzip.compress(text, 9)) / len(text),
            "xz -9e": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
        }
        listed = ", ".join(f"{name} {value:.3f}" for name, value in bits.items())
        return [f"bits per byte of {len(text):,} bytes of validation text: {listed}"]
