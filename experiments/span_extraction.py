"""Extractive question answering: the span of a text that answers a question."""

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import Experiment
from transformer.config import Bounded, Nonnegative, Positive
from transformer.data.encoders.question_answering import QuestionWindows, SpanData, SpanDataConfig
from transformer.data.encoders.question_cache import Question
from transformer.data.line_escapes import escape
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.generation import pad_encoder_inputs
from transformer.decoding.spans import Span, best_spans, scores_of_spans
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.evaluation.attention_weights import AttentionMap, encoder_attention
from transformer.evaluation.likelihood import likelihood_evaluator
from transformer.evaluation.text.span_scores import SquadMetric
from transformer.evaluation.text.written_text import GenerationEvaluator
from transformer.models.encoder import EncoderConfig
from transformer.models.span import SpanClassifier, place_log_probs
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator, Hook, Samples
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig, check_row_length

AT_ONCE = 32
"""Batch size of `predict`, in windows."""

SAMPLE_QUESTIONS = 5
"""The number of validation questions in the samples."""


@dataclass(frozen=True)
class AnswerConfig(Bounded):
    """The choice of answers, and their evaluation."""

    max_tokens: Positive = 30  # longest answer
    n_best: Positive = 1  # number of best answers per question in predict
    allow_none: bool = False  # allow the empty answer (SQuAD 2.0)
    examples: Nonnegative = 500  # validation questions answered for exact match and F1; 0: all


@dataclass(frozen=True)
class SpanExtractionConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: EncoderConfig
    data: SpanDataConfig
    answer: AnswerConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)


class SpanExtraction(Experiment):
    """An encoder that predicts the first and the last token of the answer (Devlin et al. 2019, section
    4.2)."""

    Config = SpanExtractionConfig
    heads = ("head",)

    def __init__(self, config: SpanExtractionConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is trained on the training text."""
        self.config = config
        self.data = SpanData(config.data, tokenizer)
        vocab_size = config.model.entries(self.data.special_tokens.vocab_size)
        self.model = SpanClassifier(config.model, vocab_size)
        self._logits = jax.jit(self._windows)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32))["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, the mean of -log p(start) and -log p(end) in nats, and `accuracy`, the share of windows
        with both correct."""
        logits_bt2 = self.model.apply(
            {"params": params},
            batch["tokens"],
            segments_bt=batch["segments"],
            positions_bt=batch["positions"],
            types_bt=batch["types"],
            train=train,
            rngs={"dropout": rng},
        )
        places_bk2, weights = batch["places"], batch["weights"]
        log_p = place_log_probs(logits_bt2, batch["segments"], batch["choices"], places_bk2.shape[1])
        nll_bk2 = -jnp.take_along_axis(log_p, places_bk2[:, :, None], axis=2)[:, :, 0]
        right_bk = (jnp.argmax(log_p, axis=2) == places_bk2).all(axis=-1)
        return {"loss": Sum.of(nll_bk2.mean(axis=-1), weights), "accuracy": Sum.of(right_bk, weights)}

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of windows."""
        return {"loss": jnp.sum(batch["weights"])}

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """The loss of a split's windows (a random part if `train.evaluate_batches` limits it; in order, rows
        are sorted by length), and exact match and F1 on its first `answer.examples` questions."""
        questions = list(itertools.islice(self.data.questions(split), self.config.answer.examples or None))
        references: Any = [question.references for question in questions]
        if split == "validation":
            self._measured = len(questions)

        def measured() -> str:
            total = sum(1 for _ in self.data.questions(split))
            return f"{len(questions):,} of {total:,} questions"

        loader = self.loader(split, shuffle=self.config.train.evaluate_batches > 0)
        return {
            "eval": likelihood_evaluator(self, loader, put),
            **self.other_evaluators(put, split),
            "answer": GenerationEvaluator(
                self._best, questions, references, [SquadMetric()], measured, may_be_empty=True
            ),
        }

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Some validation questions with references and predicted answers."""
        questions = list(itertools.islice(self.data.questions("validation"), SAMPLE_QUESTIONS))

        def sample(params: Params) -> str:
            shown = zip(questions, self._best(params, questions), strict=True)
            return "\n\n".join(
                f"question: {question.question}\nwanted: {' | '.join(question.references)}\nfound: {answer}"
                for question, answer in shown
            )

        return [Samples(self.config.train, folder, sample)]

    def problem(self, text: str) -> str:
        """Why a line cannot be answered: it has no question or no text."""
        try:
            self.data.parse(text)
        except UserError as error:
            return f"has {error}"
        return ""

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each line of QUESTION, tab and CONTEXT the `answer.n_best` best answers, each with a tab and
        its probability among all spans of the context (and the empty answer, with `answer.allow_none`). In a
        line \\n is a line break and \\\\ a backslash. The result is deterministic: `seed` is ignored.

        Raises:
          UserError: a line without a tab, or with nothing before or after it.
        """

        def readings() -> Iterator[QuestionWindows]:
            for number, text in enumerate(texts, first + 1):
                try:
                    yield self.data.read(*self.data.parse(text))
                except UserError as error:
                    raise UserError(f"--prompt or --input: text {number} has {error}") from None

        for reading, spans in self.answers(params, readings()):
            yield [f"{_text(reading, span)}\t{span.probability:.4f}" for span in spans]

    def attention(self, params: Params, text: str, layer: int = -1) -> AttentionMap:
        """The attention weights (h, t, t) of a layer (-1: the last) over the first window of a line of
        QUESTION, tab and CONTEXT, and the names of its query and key tokens."""
        framed = self.data.read(*self.data.parse(text)).inputs[0]
        return encoder_attention(self.model, params, framed, self.data, layer)

    def answers(self, params: Params, readings: Iterable[QuestionWindows]) -> Iterator[Any]:
        """The `answer.n_best` best spans of each reading, over all its windows, with different texts."""
        c, readings = self.config.answer, iter(readings)
        while some := list(itertools.islice(readings, AT_ONCE)):
            frames = [frame for reading in some for frame in reading.inputs]
            starts = range(0, len(frames), AT_ONCE)
            logits = iter([row for i in starts for row in self._read(params, frames[i : i + AT_ONCE])])
            for reading in some:
                parts = [(first, last, next(logits)) for first, last in reading.windows]
                before = reading.before
                windows = [(first, row[before : before + last - first]) for first, last, row in parts]
                scores_cm = scores_of_spans(windows, len(reading.characters_c2), c.max_tokens)
                # A window without the answer points at [CLS]; the empty answer needs all windows to do so.
                nothing = min(row[0].sum() for _, _, row in parts) if c.allow_none else -np.inf
                text = functools.partial(_text, reading)
                yield reading, best_spans(scores_cm, c.n_best, nothing, text)

    def data_lines(self) -> list[str]:
        """The number of questions and windows, the share of padding, and unanswered questions."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        windows = f"{len(rows.packed):,} windows, {rows.answered:.1%} of them with the answer"
        filled = f"{len(rows):,} rows, {rows.padding:.1%} of them padding"
        lines = [f"{len(rows.cache):,} training questions in {windows}, in {filled}"]
        unanswered = int((rows.cache.answers.sizes == 0).sum())
        if unanswered and not self.config.answer.allow_none:
            lines.append(f"{unanswered:,} questions have no answer, but get one: answer.allow_none is false")
        return lines

    def example_flags(self) -> list[str]:
        """The first question of the validation split."""
        first = next(self.data.questions("validation"))
        return [f"--prompt={escape(first.question)}\t{escape(first.context)}"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """Exact match and F1 on the validation questions."""
        match, f1 = measured["answer/exact_match"], measured["answer/f1"]
        questions = f"{self._measured:,} questions of the validation split"
        return [f"on {questions}: exact match {match:.1f}%, F1 {f1:.1f}%"]

    def _best(self, params: Params, questions: Iterable[Question]) -> list[str]:
        """The best answer to each question: "" where the question or the context has no token."""
        unread = []

        def readings() -> Iterator[QuestionWindows]:
            for number, question in enumerate(questions):
                try:
                    yield self.data.read(question.question, question.context)
                except UserError:
                    unread.append(number)

        answers = [_text(reading, spans[0]) for reading, spans in self.answers(params, readings())]
        for number in unread:  # in order, so that those before it are in their places
            answers.insert(number, "")
        return answers

    def _read(self, params: Params, frames: list[Any]) -> list[np.ndarray]:
        """The logits (t, 2) of each window."""
        arrays = pad_encoder_inputs(frames, AT_ONCE, self.config.data.sequence_length)
        return list(on_host(self._logits(params, *arrays))[: len(frames)])

    def _windows(self, params: Params, tokens_bt: Any, types_bt: Any, segments_bt: Any) -> jax.Array:
        return self.model.apply({"params": params}, tokens_bt, segments_bt=segments_bt, types_bt=types_bt)


def _text(reading: QuestionWindows, span: Span) -> str:
    return reading.text(span.first, span.last) if span.first >= 0 else ""
