"""Extractive question answering: which piece of a text answers a question."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.attending import AttendingEncoder
from experiments.objective import check_row_length
from experiments.token_prediction import TokenPrediction
from transformer.data.escapes import escape
from transformer.data.questions import Question
from transformer.data.spans import Reading, SpanData, SpanDataConfig
from transformer.data.tokenizers import Tokenizer
from transformer.decoding.batching import pad_framed
from transformer.decoding.spans import Span, best_spans, scores_of_spans
from transformer.errors import UserError
from transformer.evaluation.generation import GenerationEvaluator
from transformer.evaluation.span_scores import SpanScores
from transformer.models.encoder import EncoderConfig
from transformer.models.span import SpanPicker, place_log_probs
from transformer.training.experiment import Batch, Evaluator, Params, Put
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook, Samples
from transformer.training.metrics import Sum
from transformer.training.run import RunConfig

AT_ONCE = 32
"""Windows that are read together by `predict`."""

SHOWN = 5
"""How many questions of the validation split the samples show."""


@dataclass(frozen=True)
class AnswerConfig:
    """How a piece is chosen, and how many are measured; `configs/base/` says what each key means."""

    max_tokens: int = 30
    n_best: int = 1
    allow_none: bool = False
    examples: int = 500

    def __post_init__(self) -> None:
        for key, least in (("max_tokens", 1), ("n_best", 1), ("examples", 0)):
            if getattr(self, key) < least:
                raise UserError(f"{key}: {getattr(self, key)}; expected at least {least}")


@dataclass(frozen=True)
class SpanExtractionConfig(RunConfig):
    """A whole run: one group of keys for each part, listed in `configs/base/`."""

    model: EncoderConfig
    data: SpanDataConfig
    answer: AnswerConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)
        if self.model.num_token_types < 2:
            raise UserError("model.num_token_types: 1, but a question and a text are to be told apart: 2")


class SpanExtraction(TokenPrediction, AttendingEncoder):
    """An encoder that points at an answer's first and last token (Devlin et al. 2019, section 4.2)."""

    Config = SpanExtractionConfig
    sorts_rows = True
    heads = ("head",)

    def __init__(self, config: SpanExtractionConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = SpanData(config.data, tokenizer)
        self.model = SpanPicker(config.model, self.data.markers.vocab_size)
        self._logits = jax.jit(self._windows)

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, the mean of -log p(start) and -log p(end) in nats, and `accuracy`, the share of windows of
        which both are right."""
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

    @property
    def tokens_per_example(self) -> int:
        """The length of a row."""
        return self.config.data.sequence_length

    def flops_per_token(self, params: Params) -> float:
        """6 N: attention over windows that share a row is little beside it (see `training.flops`)."""
        return train_flops_per_token(matmul_parameters(params), 0, 0, 0)

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Of a split the loss of its windows, and exact match and F1 of the answers to its first
        `answer.examples` questions."""
        questions = list(itertools.islice(self.data.questions(split), self.config.answer.examples or None))
        references: Any = [each.references for each in questions]
        if split == "validation":
            self._measured = len(questions)

        def measured() -> str:
            total = sum(1 for _ in self.data.questions(split))
            return f"{len(questions):,} of {total:,} questions"

        return super().evaluators(put, split) | {
            "answer": GenerationEvaluator(
                self._best, questions, references, [SpanScores()], measured, may_be_empty=True
            )
        }

    def hooks(self, workdir: Path) -> list[Hook]:
        """Some questions of the validation split with what is wanted and what is found."""
        questions = list(itertools.islice(self.data.questions("validation"), SHOWN))

        def sample(params: Params) -> str:
            shown = zip(questions, self._best(params, questions), strict=True)
            return "\n\n".join(
                f"question: {each.question}\nwanted: {' | '.join(each.references)}\nfound: {found}"
                for each, found in shown
            )

        return [Samples(self.config.train.sample_every, sample, workdir / "samples")]

    def problem(self, text: str) -> str:
        """There is no text, or no question."""
        try:
            self.data.parse(text)
        except UserError as error:
            return f"has {error}"
        return ""

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each QUESTION, tab, CONTEXT in one line its `answer.n_best` best answers, each with a tab and
        its probability among all pieces of the context (and no answer, with `answer.allow_none`). In a line
        \\n is a line break and \\\\ a backslash. Nothing is random in it: `seed` changes nothing.

        Raises:
          UserError: a line without a tab, or with nothing before it or behind it.
        """

        def readings() -> Iterator[Reading]:
            for number, text in enumerate(texts, first + 1):
                try:
                    yield self.data.read(*self.data.parse(text))
                except UserError as error:
                    raise UserError(f"--prompt or --input: text {number} has {error}") from None

        for reading, spans in self.answers(params, readings()):
            yield [f"{_text(reading, span)}\t{span.probability:.4f}" for span in spans]

    def framed(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The first window of QUESTION, tab, CONTEXT."""
        return self.data.read(*self.data.parse(text)).frames[0]

    def answers(self, params: Params, readings: Iterable[Reading]) -> Iterator[tuple[Reading, list[Span]]]:
        """The `answer.n_best` best spans of each reading, over all its windows."""
        c, readings = self.config.answer, iter(readings)
        while some := list(itertools.islice(readings, AT_ONCE)):
            frames = [frame for reading in some for frame in reading.frames]
            starts = range(0, len(frames), AT_ONCE)
            logits = iter([one for i in starts for one in self._read(params, frames[i : i + AT_ONCE])])
            for reading in some:
                found = [(first, last, next(logits)) for first, last in reading.windows]
                before = reading.before
                windows = [(first, each[before : before + last - first]) for first, last, each in found]
                scores_cm = scores_of_spans(windows, len(reading.characters_c2), c.max_tokens)
                # A window says "not here" by pointing at [CLS]; there is no answer where all of them do.
                nothing = min(each[0].sum() for _, _, each in found) if c.allow_none else -np.inf
                yield reading, best_spans(scores_cm, c.n_best, nothing)

    def opening_lines(self) -> list[str]:
        """How the questions and their contexts fill the rows, and what was left out or cut."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        windows = f"{len(rows.kept):,} windows, {rows.answered:.1%} of them with the answer"
        filled = f"{len(rows):,} rows, {rows.padding:.1%} of them padding"
        lines = [f"{len(rows.cache):,} training questions in {windows}, in {filled}"]
        if rows.cut:
            most = self.config.data.question_length
            lines.append(f"{rows.cut:,} questions are longer than {most} tokens: their ends are cut off")
        for what, count in rows.cache.skipped.items():
            if count:
                lines.append(f"{count:,} questions are left out: {what}")
        return lines

    def example_flags(self) -> list[str]:
        """The first question of the validation split."""
        first = next(self.data.questions("validation"))
        return [f"--prompt={escape(first.question)}\t{escape(first.context)}"]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """How many answers are right."""
        match, f1 = measured["answer/exact_match"], measured["answer/f1"]
        asked = f"{self._measured:,} questions of the validation split"
        return [f"on {asked}: exact match {match:.1f}%, F1 {f1:.1f}%"]

    def _best(self, params: Params, questions: Iterable[Question]) -> list[str]:
        readings = (self.data.read(each.question, each.context) for each in questions)
        return [_text(reading, spans[0]) for reading, spans in self.answers(params, readings)]

    def _read(self, params: Params, frames: list[Any]) -> list[np.ndarray]:
        """The logits (t, 2) of each window."""
        arrays = pad_framed(frames, AT_ONCE, self.config.data.sequence_length)
        return list(np.asarray(self._logits(params, *arrays))[: len(frames)])

    def _windows(self, params: Params, tokens_bt: Any, types_bt: Any, segments_bt: Any) -> jax.Array:
        return self.model.apply({"params": params}, tokens_bt, segments_bt=segments_bt, types_bt=types_bt)


def _text(reading: Reading, span: Span) -> str:
    return reading.text(span.first, span.last) if span.first >= 0 else ""
