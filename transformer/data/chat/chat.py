"""Conversations: from a config's `data` group to packed rows."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transformer.config import Place, Positive
from transformer.data.cache.disk_cache import digest
from transformer.data.chat.chat_template import UNREAD, ChatTemplate
from transformer.data.chat.chat_tokens import ChatTokens
from transformer.data.chat.dialogues import Conversations, Dialogues, Openings
from transformer.data.chat.message_fields import TOOLS
from transformer.data.chat.sequences import Sequences
from transformer.data.corpus import CorpusConfig, key_in_errors
from transformer.data.loader import DataLoader, Rows
from transformer.data.packed_corpus import PackedCorpus
from transformer.data.pairs.pair_packing import RepackedPairs, pack
from transformer.data.source_names import suggest_kind
from transformer.data.sources import SOURCES, Source
from transformer.data.sources.base import tallied
from transformer.errors import UserError

KINDS = ("library_questions", "problems", "jsonl", "parquet", "hf")
"""Sources that have conversations."""


@dataclass(frozen=True)
class DialogueConfig(CorpusConfig):
    """The base of conversations and preferences."""

    source: str = "library_questions"  # about functions of Python's standard library; or jsonl:GLOB ...
    # auto (that of tokenizer_config.json beside the tokenizer, else plain), plain, or the path of a template
    template: Place = "auto"
    # a first message of the system: template (as that writes it), or user (the beginning of the user's)
    system_role: Literal["template", "user"] = "template"
    sequence_length: Positive = 256  # tokens per row
    too_long: Literal["cut", "skip", "refuse"] = "cut"  # longer than a row: truncate, leave out, error

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("source", "validation_source"):
            value = getattr(self, key)
            if value and value.partition(":")[0] not in KINDS:
                raise UserError(f"{key}: {value!r}; {suggest_kind(value, KINDS)}")


@dataclass(frozen=True)
class ChatDataConfig(DialogueConfig):
    """Conversations, packed into rows."""

    # field of the messages, [{"role": "user", "content": "..."}, ...]; or several, the answer's last:
    # prompt,completion
    messages_field: str = "messages"


class PackedSequences(Rows):
    """Rows of whole records of `per_record` sequences, packed by first fit; each sequence is a segment.

    A row is a dictionary of arrays (t,) as in `PackedRows`, without `bytes`; `weights` is 1 where the target
    is to be learned. Sequences longer than t / `answers` are truncated, left out or an error, by `too_long`;
    records of which nothing to learn is left are left out.

    Raises:
      UserError: a record that is too long, with `too_long` "refuse"; no record is left.
    """

    def __init__(
        self,
        sequences: Sequences,
        sequence_length: int,
        too_long: str = "cut",
        *,
        answers: int = 1,
        seed: int = 0,
        place: Callable[[int], str] = lambda index: f"record {index + 1}",
    ) -> None:
        """`sequence_length` is t, `seed` that of the order in which records are packed, and `place` gives the
        location of a record, for messages."""
        self.sequences, self.sequence_length, self.per_record = sequences, sequence_length, answers
        most = sequence_length // answers
        lengths_ne = (np.diff(sequences.offsets) - 1).reshape(-1, answers)  # the last token is only a target
        long_n = (lengths_ne > most).any(axis=1)
        if too_long == "refuse" and long_n.any():
            first = int(np.flatnonzero(long_n)[0])
            size = f"{lengths_ne[first].max() + 1} tokens; data.sequence_length is {sequence_length}"
            raise UserError(
                f"{place(int(sequences.records[first * answers]))} has {size}"
                + (f" for {answers} answers" if answers > 1 else "")
            )
        nothing_n = (sequences.firsts.reshape(-1, answers) > most).any(axis=1)
        left_out_n = nothing_n | long_n if too_long == "skip" else nothing_n
        self._kept, self._seed = np.flatnonzero(~left_out_n), seed
        self.records = len(self._kept)
        if not self.records:
            raise UserError(f"no record is left of {len(lengths_ne)}: all are longer than a row")
        cut = int((long_n & ~left_out_n).sum())
        self.tally = tallied(self.records, {"truncated": cut, "too long": left_out_n.sum()}, "packed")
        self._lengths_ne = np.minimum(lengths_ne, most)

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        """The records of each row."""
        both_n1 = self._lengths_ne.sum(axis=1, keepdims=True)
        return pack(both_n1, self._kept, [self.sequence_length], self._seed)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def identity(self) -> str:
        """A digest of all sequences as they are in the rows, in any order."""
        most = int(self._lengths_ne.max())
        return digest(self.sequences.identity, most, self.records)

    @property
    def padding(self) -> float:
        """The share of padding among all tokens."""
        return 1 - self._lengths_ne[np.concatenate(self._rows)].sum() / (len(self) * self.sequence_length)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        batch = padding_rows(len(rows), self.sequence_length)
        for i, row in enumerate(rows):
            for segment, sequence, start, end in self._placed(row):
                here, n = np.s_[i, start:end], end - start
                first = int(self.sequences.offsets[sequence])
                tokens = self.sequences.tokens[first : first + n + 1]
                batch["tokens"][here], batch["targets"][here] = tokens[:-1], tokens[1:]
                batch["segments"][here], batch["positions"][here] = segment, np.arange(n)
                batch["weights"][here] = self.sequences.answers[first + 1 : first + n + 1]
        return batch

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these rows, the numbers from 0 of the records of its segments, `per_record` each."""
        records_n = self.sequences.records[:: self.per_record]
        of_rows = [self._rows[row] if row >= 0 else np.zeros(0, int) for row in rows]
        return [np.repeat(records_n[numbers], self.per_record) for numbers in of_rows]

    def _placed(self, row: int) -> Iterator[tuple[int, int, int, int]]:
        """Segment (1, 2, ...), number, start and end of each sequence of a row."""
        start = segment = 0
        for record in self._rows[row] if row >= 0 else ():
            for k, length in enumerate(self._lengths_ne[record].tolist()):
                segment += 1
                yield segment, int(record) * self.per_record + k, start, start + length
                start += length


def padding_rows(b: int, t: int) -> dict[str, np.ndarray]:
    """b rows of padding."""
    integers = ("tokens", "targets", "segments", "positions")
    return {name: np.zeros((b, t), np.int32) for name in integers} | {"weights": np.zeros((b, t), np.float32)}


class ChatData(PackedCorpus):
    """The conversations of a config; raises as `Corpus`.

    `reference_identity`, if it is set, says which model the reference or the teacher is.
    """

    config: Any
    reference_identity: Callable[[], str] | None = None
    fields_of: Sequence[str] = ("messages_field",)
    source_class: type[Dialogues] = Conversations
    lines = "jsonl"
    kinds = {kind: SOURCES[kind] for kind in KINDS}  # noqa: RUF012

    @property
    def reads(self) -> Sequence[str]:
        """The fields of the messages."""
        return [name for key in self.fields_of for name in getattr(self.config, key).split(",") if name]

    def source(self, split: str, **options: Any) -> Dialogues:
        """The records of a split; `options` are those of `open`."""
        unread = [name for name in ("system", *UNREAD) if name not in self.reads]
        settings: Any = {
            "fields": self.reads,
            "structures": True,
            "unread": unread,
            "additional": [TOOLS],
        } | options
        return self.source_class([self.open(split, field, **settings) for field in self.reads])

    def sources(self, split: str) -> Sequence[Dialogues]:
        """The records of a split as the only source."""
        return [self.source(split)]

    def asked(self, split: str) -> Sequence[Dialogues]:
        """All records; one with null in a field is an error that names it."""
        return [self.source(split, optional=self.reads)]

    def conditions(self, split: str) -> Sequence[Source]:
        """The messages of each record before the first answer."""
        return [Openings(self.source(split))]

    @functools.cached_property
    def chat(self) -> ChatTokens:
        """The template and the tokenizer, which from now on keeps the template with it."""
        name, tokenizer = self.config.template, self.tokenizer
        with key_in_errors("template"):
            if name not in ("auto", "plain"):
                template = ChatTemplate.read(name)
            else:
                template = ChatTemplate.of(tokenizer) if name == "auto" else ChatTemplate()
            tokens = ChatTokens(tokenizer, template, self.config.system_role == "user")
        tokenizer.chat_template = template.source
        return tokens

    def kept(self) -> dict[str, Any]:
        """The tokenizer, with the template."""
        _ = self.chat
        return super().kept()

    def rows(self, split: str) -> Any:
        """The packed rows of a split, tokenised on first use."""
        return self.packer(split)(seed=0)

    def packer(self, split: str) -> Callable[..., PackedSequences]:
        """`seed` -> the rows of a split, packed in another order."""
        return functools.partial(self._pack, self.sequences(split), self.source(split).place)

    def _pack(self, sequences: Sequences, place: Callable[[int], str], seed: int) -> PackedSequences:
        c = self.config
        with key_in_errors("too_long"):
            return PackedSequences(sequences, c.sequence_length, c.too_long, seed=seed, place=place)

    def sequences(self, split: str) -> Sequences:
        """The tokenised conversations of a split."""
        chat = self.chat
        with key_in_errors(self.key(split)):
            return Sequences.of(self.source(split), chat, self.folder)

    def contents(self) -> dict[str, dict[str, Any]]:
        """As for `Corpus`, and the reference model."""
        reference = self.reference_identity
        return super().contents() | ({"reference": {"model": reference()}} if reference else {})

    def blank(self) -> dict[str, np.ndarray]:
        """A row of padding, stacked, for its shapes; no data are read."""
        return padding_rows(1, self.config.sequence_length)

    def loader(self, split: str, batch_size: int, *, repeat: bool = False, **options) -> DataLoader:
        """As for `Corpus`; rows that repeat are packed again in every epoch."""
        packer = self.packer(split)
        rows: Any = packer(seed=0)
        if repeat:
            rows = RepackedPairs(rows, lambda epoch, seed: packer(seed=seed))
        return DataLoader(rows, batch_size, workers=self.config.workers, repeat=repeat, **options)

    def inputs(self, split: str) -> Iterator[str]:
        """The messages of each record up to its last answer, as JSON."""
        (source,) = self.asked(split)
        return (json.dumps(source.opening(index)) for index in range(len(source)))
