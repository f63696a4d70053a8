"""Extractive question answering: from a config's `data` group to batches."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from transformer.config import Positive
from transformer.data.corpus import CorpusConfig
from transformer.data.encoders.encoder_packing import EncoderRows
from transformer.data.encoders.question_cache import Fields, Question, QuestionCache, read_all
from transformer.data.line_escapes import escape, unescape
from transformer.data.packed_corpus import PackedCorpus
from transformer.data.sources import Source
from transformer.data.sources.base import tallied
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError


@dataclass(frozen=True)
class SpanDataConfig(CorpusConfig):
    """Questions, contexts and answers."""

    source: str = "function_questions"  # or squad:GLOB (files of SQuAD), jsonl:GLOB, tfds:squad
    question_field: str = "question"  # field of the question
    context_field: str = "context"  # field of the text that has the answer
    answers_field: str = "answers"  # field of {"text": [...], "answer_start": [...]}, in characters
    sequence_length: Positive = 256  # tokens per row; longest question and window together
    question_length: Positive = 48  # tokens of a question; longer ones are truncated (counted)
    stride: int = 128  # tokens between the starts of the windows of a long text
    misplaced: Literal["refuse", "skip"] = "refuse"  # if an answer is not at its answer_start

    def __post_init__(self) -> None:
        super().__post_init__()
        room = self.sequence_length - self.question_length - 3
        if not 1 <= self.stride <= room:
            raise UserError(
                f"stride: {self.stride}; expected 1 to {room}, what sequence_length {self.sequence_length} "
                f"leaves beside question_length {self.question_length} and three special tokens"
            )

    @property
    def fields(self) -> Fields:
        """The field names of a record."""
        return Fields(self.question_field, self.context_field, self.answers_field)


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """The windows (start, end) of a text: `room` tokens every `stride` tokens, up to the first window that
    reaches the end (Devlin et al. 2019, the released code, `doc_stride`)."""
    last = -(-max(length - room, 0) // stride)
    return [(n * stride, min(n * stride + room, length)) for n in range(last + 1)]


class SpanRows(EncoderRows):
    """Packed rows of `[CLS] question [SEP] window of the context [SEP]`.

    The arrays are those of `EncoderRows`, `choices`, bool (t,), the positions where an answer may start or
    end (the tokens of the window, and `[CLS]` for no answer), and instead of `labels` `places`, int32 (k, 2),
    the start and end of the answer in each text: the first answer that is entirely in the window, or `[CLS]`
    twice if there is none. `answered` is the share of windows with an answer.
    """

    def __init__(
        self,
        cache: QuestionCache,
        special_tokens: SpecialTokens,
        length: int,
        question_length: int,
        stride: int,
    ) -> None:
        """`length` is the length of a row; questions are truncated to `question_length`."""
        self.cache, self._question_length = cache, question_length
        asked_n = np.minimum(cache.questions.sizes, question_length)
        windows_w = [
            (i, first, last, *_target(cache.answers[i], first, last, asked_n[i] + 2))
            for i, context in enumerate(cache.context_of)
            for first, last in windows(cache.contexts.sizes[context], length - 3 - asked_n[i], stride)
        ]
        self._windows_w5 = np.array(windows_w, np.int32)
        answered_w = self._windows_w5[:, 3] > 0
        self.answered = float(answered_w.mean())
        within = np.unique(self._windows_w5[answered_w, 0])
        counts = {"truncated": int((cache.questions.sizes > question_length).sum())}
        counts["without the answer in one window"] = int((cache.answers.sizes > 0).sum()) - len(within)
        self.tally = tallied(len(cache), counts | cache.skipped, "packed")
        lengths_w = asked_n[self._windows_w5[:, 0]] + 3 + np.diff(self._windows_w5[:, 1:3])[:, 0]
        every = np.arange(len(windows_w), dtype=np.int32)
        super().__init__(lengths_w, every, every, special_tokens, length)

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of the question and of the window."""
        i, first, last = self._windows_w5[index, :3]
        context = self.cache.contexts[self.cache.context_of[i]]
        return [self.cache.questions[i][: self._question_length], context[first:last]]

    def document(self, index: int) -> int:
        """The number of the record of a window, also of those whose questions are left out."""
        return int(self.cache.numbers[self._windows_w5[index, 0]])

    def batch(self, rows: np.ndarray, epochs: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        batch = super().batch(rows, epochs)
        window_bk = batch.pop("labels")  # the label of a window is its index
        segments_bt = batch["segments"]
        numbers_k1 = np.arange(1, window_bk.shape[1] + 1)[:, None]
        starts_bk = np.argmax(segments_bt[:, None] == numbers_k1, axis=2)
        places_bk2 = starts_bk[..., None] + self._windows_w5[window_bk][..., 3:]
        batch["places"] = np.where(batch["weights"][..., None] > 0, places_bk2, 0).astype(np.int32)
        is_last_bt = np.diff(segments_bt, axis=1, append=0) != 0  # the [SEP] at the end of a text
        in_window_bt = (batch["types"] == 1) & ~is_last_bt
        batch["choices"] = (segments_bt > 0) & (in_window_bt | (batch["positions"] == 0))
        return batch


def _target(answers_a2: np.ndarray, first: int, last: int, before: int) -> tuple[int, int]:
    """The position from `[CLS]` of the first answer that is entirely in the window; 0, 0 if there is none."""
    for start, end in answers_a2:
        if first <= start and end < last:
            return int(start - first + before), int(end - first + before)
    return 0, 0


@dataclass(frozen=True)
class QuestionWindows:
    """A question and its context as model inputs, window by window.

    Window i is `inputs[i]`, tokens and types. Its context tokens, `windows[i][0]` to `windows[i][1]`, start
    at position `before`; `characters_c2` has the character span of each context token.
    """

    context: str
    characters_c2: np.ndarray
    before: int
    windows: list[tuple[int, int]]
    inputs: list[tuple[np.ndarray, np.ndarray]]

    def text(self, first: int, last: int) -> str:
        """The text of the context from token `first` to `last`, inclusive, with its combining marks."""
        start, end = self.characters_c2[first, 0], self.characters_c2[last, 1]
        while unicodedata.category(self.context[end : end + 1] or " ").startswith("M"):
            end += 1  # a mark of the last letter, where the tokenizer leaves marks out
        return self.context[start:end].strip()


class SpanData(PackedCorpus):
    """The questions of a config; raises as `Corpus` and `Question.read`."""

    config: SpanDataConfig

    def __init__(self, config: SpanDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        super().__init__(config, tokenizer)
        self.special_tokens = SpecialTokens.of(self.tokenizer)

    def fields(self, split: str) -> tuple[str, ...]:
        """The fields of a question."""
        c = self.config
        return c.question_field, c.context_field, c.answers_field

    def sources(self, split: str) -> Sequence[Source]:
        """The sources of the questions and of the contexts of a split."""
        return [self.open(split, field) for field in (self.config.question_field, self.config.context_field)]

    @property
    def reads(self) -> Sequence[str]:
        """The field of the context: questions on one context stay in one split."""
        return [self.config.context_field]

    def conditions(self, split: str) -> Sequence[Source]:
        """The contexts."""
        return self.sources(split)[1:]

    def rows(self, split: str) -> SpanRows:
        """The packed windows of a split, tokenised on first use."""
        c = self.config
        source = self.open(split, c.context_field)
        cache = QuestionCache.of(source, c.fields, self.tokenizer, self.folder, c.misplaced == "skip")
        return SpanRows(cache, self.special_tokens, c.sequence_length, c.question_length, c.stride)

    def questions(self, split: str) -> Iterator[Question]:
        """The questions of a split."""
        source = self.open(split, self.config.context_field)
        questions = read_all(source, self.config.fields, self.config.misplaced == "skip")
        return (question for question in questions if question is not None)

    def asked(self, split: str) -> Sequence[Source]:
        """The questions and the contexts of all records, also of those without an answer."""
        fields = self.config.question_field, self.config.context_field
        return [self.open(split, field, fields=fields, optional=fields) for field in fields]

    def inputs(self, split: str) -> Iterator[str]:
        """Each question and its context as a line for `parse`."""
        questions, contexts = self.asked(split)
        for index in range(len(contexts)):
            yield f"{escape(questions.text(index))}\t{escape(contexts.text(index))}"

    def read(self, question: str, context: str) -> QuestionWindows:
        """The model inputs for a question and a context of any length.

        Raises:
          UserError: the question or the context has no token.
        """
        c = self.config
        query = np.array(self.tokenizer.encode(question)[: c.question_length], np.int32)
        ids, characters = self.tokenizer.encode_with_spans(context)
        if not len(query) or not ids:
            raise UserError(f"{'no question' if not len(query) else 'no text'} in {question!r}, {context!r}")
        tokens = np.array(ids, np.int32)
        spans = windows(len(ids), c.sequence_length - 3 - len(query), c.stride)
        inputs = [self.special_tokens.build_input([query, tokens[first:last]]) for first, last in spans]
        return QuestionWindows(context, np.array(characters, np.int32), len(query) + 2, spans, inputs)

    def parse(self, line: str) -> tuple[str, str]:
        """A question and its context from a line of QUESTION, tab and CONTEXT with the escapes of `escape`.

        Raises:
          UserError: there is no tab.
        """
        question, tab, context = line.partition("\t")
        if not tab:
            raise UserError("no tab; expected QUESTION, a tab, and the text that has the answer")
        return unescape(question), unescape(context)
