"""Extractive questions: records in the format of SQuAD, and a cache of their tokens."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer.data.cache.disk_cache import build_once, digest, load_array, load_values
from transformer.data.cache.token_cache import BAR
from transformer.data.sources import Source
from transformer.data.sources.base import check_text
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 2


class MisplacedAnswer(UserError):
    """An answer that is not at its position in the context."""


@dataclass(frozen=True)
class Fields:
    """The field names of a record."""

    question: str
    context: str
    answers: str


@dataclass(frozen=True)
class Question:
    """A question, its context, and the character span of each answer in the context; without answers the
    question is impossible to answer."""

    question: str
    context: str
    answers: tuple[tuple[int, int], ...]

    @property
    def references(self) -> list[str]:
        """The answers as text; the empty string for an impossible question."""
        return [self.context[first:last] for first, last in self.answers] or [""]

    @classmethod
    def read(cls, record: Mapping[str, Any], fields: Fields, place: Callable[[], str]) -> "Question":
        """Parses a record, {question, context, answers: {"text": [...], "answer_start": [...]}}; `place`
        gives its location, for messages.

        Raises:
          UserError: a field is missing or of another type.
          MisplacedAnswer: the context has another text at `answer_start`.
        """
        for field in (fields.question, fields.context):
            if not isinstance(record.get(field), str):
                raise UserError(f"{place()}: no text {field!r}; fields there: {', '.join(record)}")
            check_text(record[field], place, field)
        context, answers = record[fields.context], record.get(fields.answers)
        expected = 'expected {"text": [...], "answer_start": [...]}, both of one length'
        if not isinstance(answers, Mapping):
            problem = (
                f"no field {fields.answers!r}" if answers is None else f"{fields.answers!r} is not an object"
            )
            raise UserError(f"{place()}: {problem}; {expected}")
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise UserError(f"{place()}: {fields.answers!r} is not of its form; {expected}")
        spans = []
        for text, start in zip(texts, starts, strict=True):
            if not isinstance(text, str) or type(start) is not int or start < 0 or not text.strip():
                raise UserError(
                    f"{place()}: {text!r} at {start!r}; expected a text and the character it is at"
                )
            there = context[start : start + len(text)]
            if there != text:
                raise MisplacedAnswer(
                    f"{place()}: at character {start} is {there!r}, not the answer {text!r}"
                )
            spans.append((start, start + len(text)))
        return cls(record[fields.question], context, tuple(spans))


def token_spans(characters_c2: np.ndarray, answers: Sequence[tuple[int, int]]) -> np.ndarray:
    """Character spans (a, 2) of answers -> their first and last tokens (a, 2), without answers that have no
    token; `characters_c2` has the character span of each token."""
    starts_c, ends_c = np.maximum.accumulate(characters_c2, axis=0).T
    spans = [
        (np.searchsorted(ends_c, first, side="right"), np.searchsorted(starts_c, last, side="left") - 1)
        for first, last in answers
    ]
    return np.array([span for span in spans if span[0] <= span[1]], np.int32).reshape(-1, 2)


class Ragged:
    """Arrays of different lengths, concatenated in a memory-mapped file."""

    def __init__(self, folder: Path, name: str) -> None:
        """Opens the files of `write`."""
        self.values = load_array(folder / f"{name}.npy")
        self.offsets = load_array(folder / f"{name}.offsets.npy")
        self.sizes = np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @staticmethod
    def write(folder: Path, name: str, arrays: Sequence[np.ndarray]) -> None:
        """Writes one or more arrays."""
        np.save(folder / f"{name}.npy", np.concatenate(arrays))
        np.save(folder / f"{name}.offsets.npy", np.cumsum([0, *map(len, arrays)]))


class QuestionCache:
    """The tokenised questions of one source, cached on disk.

    Question i is of record `numbers[i]`: `questions[i]` and `contexts[context_of[i]]` are its tokens,
    `answers[i]` (a, 2) the first and last token of each answer; a context of several questions is stored
    once. `skipped` counts questions that were left out: "misplaced" (an answer is not at its position) and
    "empty" (the question, the context or all answers have no token).
    """

    def __init__(self, folder: Path) -> None:
        """Opens a complete cache."""
        self.questions, self.contexts, self.answers = (
            Ragged(folder, name) for name in ("questions", "contexts", "answers")
        )
        self.context_of, self.numbers = (load_array(folder / f"{n}.npy") for n in ("context_of", "numbers"))
        self.skipped: dict[str, int] = load_values(folder / "skipped.json")

    def __len__(self) -> int:
        return len(self.questions)

    @classmethod
    def of(
        cls, source: Source, fields: Fields, tokenizer: Tokenizer, data_folder: Path, skip: bool
    ) -> "QuestionCache":
        """Opens the cache, or makes it; with `skip` questions with misplaced answers are left out.

        Raises:
          UserError: a record in another format, or no question is left.
        """
        key = digest(FORMAT, source.identity, vars(fields), tokenizer.identity, skip)
        return cls(
            build_once(
                data_folder / "questions" / key, lambda new: _write(source, fields, tokenizer, skip, new)
            )
        )


def read_all(source: Source, fields: Fields, skip: bool) -> Iterator[Question | None]:
    """The questions of a source in order; with `skip`, None for a misplaced answer."""
    for index in range(len(source)):
        try:
            yield Question.read(source[index], fields, functools.partial(source.place, index))
        except MisplacedAnswer:
            if not skip:
                raise
            yield None


def _write(source: Source, fields: Fields, tokenizer: Tokenizer, skip: bool, folder: Path) -> None:
    if not len(source):
        raise UserError(f"{source.name}: no question; give more, or data.validation_source")
    questions: list[np.ndarray] = []
    contexts: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    context_of: list[int] = []
    numbers: list[int] = []
    known: dict[str, tuple[int, np.ndarray]] = {}  # context -> index, character spans
    skipped = {"misplaced": 0, "empty": 0}
    bar = tqdm(read_all(source, fields, skip), f"tokenising {source.name}", len(source), **BAR)
    for index, entry in enumerate(bar):
        if entry is None:
            skipped["misplaced"] += 1
            continue
        if entry.context not in known:
            ids, characters = tokenizer.encode_with_spans(entry.context)
            known[entry.context] = len(contexts), np.array(characters, np.int32).reshape(-1, 2)
            contexts.append(np.array(ids, np.int32))
        number, characters_c2 = known[entry.context]
        tokens = np.array(tokenizer.encode(entry.question), np.int32)
        spans_a2 = (
            token_spans(characters_c2, entry.answers) if len(characters_c2) else np.empty((0, 2), np.int32)
        )
        if not len(tokens) or not len(characters_c2) or len(spans_a2) < bool(entry.answers):
            skipped["empty"] += 1
            continue
        questions.append(tokens)
        answers.append(spans_a2)
        context_of.append(number)
        numbers.append(index)
    if not questions:
        raise UserError(f"{source.name}: no question of {len(source)} is left: {skipped}")
    for name, arrays in (("questions", questions), ("contexts", contexts), ("answers", answers)):
        Ragged.write(folder, name, arrays)
    np.save(folder / "context_of.npy", np.array(context_of))
    np.save(folder / "numbers.npy", np.array(numbers))
    (folder / "skipped.json").write_text(json.dumps(skipped))
