"""Conversations and preferences as sources, and their tokens with the answers marked."""

import contextlib
import dataclasses
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from transformer.data.cache.disk_cache import digest
from transformer.data.chat.chat_template import (
    ChatTemplate,
    Message,
    RewrittenError,
    check_messages,
    with_tools,
)
from transformer.data.chat.message_fields import TOOLS, joined_system, texts_in, written
from transformer.data.sources import Source
from transformer.data.sources.joined_fields import JoinedFields
from transformer.data.sources.options import before_answer
from transformer.data.tokenization.tokenizers import Tokenizer, whole
from transformer.errors import UserError
from transformer.json_text import parse_json


class Dialogues(JoinedFields):
    """Records of one or more conversations, from the fields that `parts` read of the same records.

    The text of a record, on which a tokenizer may be trained, is that of its messages without a template.
    """

    last_only = False
    """Whether only the last answer of a conversation is one to learn."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        messages = (message for turns in self.conversations(index) for message in turns)
        return {self.field: "\n".join(map(written, messages))}

    def conversations(self, index: int) -> list[list[Message]]:
        """The conversations of a record.

        Raises:
          UserError: it has no such conversations; the message names its place.
        """
        first, *more = [part[index] for part in self._parts]
        fields = [part.field for part in self._parts]
        values = [record.get(name) for record, name in zip((first, *more), fields, strict=True)]
        try:
            return [with_tools(messages, first.get(TOOLS)) for messages in self._read(*values)]
        except UserError as error:
            raise UserError(f"{self.place(index)}: {error}") from None

    def opening(self, index: int) -> list[Message]:
        """The messages of a record, without the answer if they end with one.

        Raises:
          UserError: there are none; the message names the record's place.
        """
        *before, last = self.conversations(index)[0]
        if last["role"] != "assistant":
            return [*before, last]
        if not before:
            raise UserError(f"{self.place(index)}: no message before the last answer: nothing to answer")
        return before

    def record(self, index: int) -> dict[str, Any]:
        """The fields of a record, and "answer", the text of the answer that it ends with; "" if with none."""
        last = self.conversations(index)[0][-1]
        return self._parts[0][index] | {"answer": last["content"] if last["role"] == "assistant" else ""}

    @abstractmethod
    def _read(self, *values: Any) -> list[list[Message]]:
        """The conversations in the values of the fields."""


class Openings(Source):
    """The messages of each record before its first answer to learn, as JSON."""

    def __init__(self, dialogues: Dialogues) -> None:
        self._dialogues, self.name = dialogues, dialogues.name
        self.identity = digest("openings", dialogues.identity)

    def __len__(self) -> int:
        return len(self._dialogues)

    def __getitem__(self, index: int) -> dict[str, Any]:
        messages = self._dialogues.conversations(index)[0]
        return {
            self.field: json.dumps(messages[:-1] if self._dialogues.last_only else before_answer(messages))
        }

    def place(self, index: int) -> str:
        """The file and the line of a record."""
        return self._dialogues.place(index)


class Conversations(Dialogues):
    """One conversation in each record: a list of messages or the JSON of one; or, in several fields, the
    prompt, whose texts are joined by line breaks, and last the answer."""

    kind = "Conversations"

    def _read(self, *values: Any) -> list[list[Message]]:
        *prompts, value = values
        if prompts:
            return [[*_prompt(prompts), *_messages(value, "assistant")]]
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = parse_json(value)
        return [check_messages(value)]


class Preferences(Dialogues):
    """The chosen and the rejected answer to the same prompt, which is a text, a message or a list of them.

    An answer is a text, a message, or a conversation that ends with it: the prompt first, or without a field
    of the prompt what both start with. A text is a text, also where it could be read as JSON.
    """

    kind = "Preferences"
    last_only = True

    def _read(self, *values: Any) -> list[list[Message]]:
        *prompts, chosen, rejected = (
            _messages(value, role)
            for value, role in zip(values, ("user", "assistant", "assistant")[-len(values) :], strict=True)
        )
        before = prompts[0] if prompts else chosen[:-1]
        if not before:
            raise UserError("no message before the chosen answer; expected the prompt there")
        if before[-1]["role"] == "assistant":
            raise UserError("the prompt ends with an answer")
        return [[*before, self._answer(messages, before)] for messages in (chosen, rejected)]

    def _answer(self, messages: list[Message], before: list[Message]) -> Message:
        *earlier, last = messages
        if earlier and (earlier != before or last["role"] != "assistant"):
            raise UserError(f"{len(messages)} messages as an answer; expected one, or the prompt and one")
        if last["role"] != "assistant":
            raise UserError(f"an answer is a message of the {last['role']}; expected one of the assistant")
        if "weight" in last:
            raise UserError("an answer has the weight 0; leave the record out")
        return last


def _prompt(values: Sequence[Any]) -> list[Message]:
    """The messages of a prompt in several fields, of which some may be empty."""
    parts = [value for value in values if not isinstance(value, str) or value.strip()]
    if all(isinstance(value, str) for value in parts):
        parts = ["\n".join(parts)]
    return [message for value in parts for message in _messages(value, "user")]


def _messages(value: Any, role: str) -> list[Message]:
    """The messages of a text or of an object, whose role is by default this one, or of a list."""
    if isinstance(value, str):
        value = {"content": value}
    if isinstance(value, dict):
        value = [value if value.get("role") or value.get("from") else value | {"role": role}]
    return check_messages(value)


class ChatTokens:
    """Conversations as tokens, by a template and a tokenizer whose special tokens the template may use.

    With `joins_system` a first message of the system is the beginning of the user's, for templates that
    refuse it, such as Gemma's.

    Raises:
      UserError: the template ends answers with no special token, so that their end cannot be recognised.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, joins_system: bool = False) -> None:
        self._joins_system = joins_system
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        names = {role: tokenizer.name(i) for role, i in ids.items()}
        if tokenizer.special and "bos_token" not in tokenizer.special:
            names["bos_token"] = ""  # as in transformers, where what is not named is empty in a template
        self.template = dataclasses.replace(template, tokens=names)
        parts = [self.template.source, self.template.tokens, *(["joins system"] if joins_system else [])]
        self.identity = digest("chat", tokenizer.identity, *parts)
        self._backend = whole(tokenizers.Tokenizer.from_str(tokenizer.content), "the tokenizer")
        self._backend.encode_special_tokens = False
        added = self._backend.get_added_tokens_decoder()
        self._special = {i: token.content for i, token in added.items() if token.special}
        talk = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        answer, _ = self.template.pieces(talk)[-1]
        # A template may also start an answer with special tokens.
        ends = [i for i in self.read(answer.rpartition("answer")[2]) if i in self._special]
        if not ends:
            raise UserError("the template ends answers with no special token of the tokenizer")
        self.end_id: int = ends[0]

    def encode(self, messages: Sequence[Message], last_only: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The tokens (m,) up to the end of the last answer to learn, and whether each is one of such an
        answer or its end; with `last_only` of the last one.

        Raises:
          UserError: a message has the text of a special token, there is nothing to learn, or the template
            refuses the messages or leaves out some of what they say.
        """
        return self._encode(self._checked(messages), last_only)

    def _encode(self, messages: Sequence[Message], last_only: bool) -> tuple[np.ndarray, np.ndarray]:
        ids: list[int] = []
        marks: list[bool] = []
        for new, is_answer in self._pieces(messages, last_only=last_only):
            stop = len(new) - new[::-1].index(self.end_id) if is_answer and self.end_id in new else len(new)
            ids += new
            marks += [is_answer and i < stop for i in range(len(new))]
        if not any(marks):
            raise UserError("no answer to learn: expected a message of the assistant, without weight 0")
        last = len(marks) - marks[::-1].index(True)
        marks_m = np.array(marks[:last])
        if last_only:
            marks_m[: np.flatnonzero(~marks_m)[-1]] = False
        return np.array(ids[:last], np.int64), marks_m

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of messages and of the beginning of an answer to them. Raises as `encode`."""
        messages = self._checked(messages)
        return [i for new, _ in self._pieces(messages, answering=True) for i in new]

    def examples(
        self, messages: Sequence[Message], last_only: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The conversation as `encode` has it; where the template writes earlier messages otherwise when
        others follow, once for each answer to learn, after the messages before it as they are written then.
        Raises as `encode`."""
        messages = self._checked(messages)
        try:
            if not last_only:
                list(self.template.pieces(messages))
        except RewrittenError:
            learned = [i for i, m in enumerate(messages) if m["role"] == "assistant" and m.get("weight") != 0]
            yield from (self._encode(messages[: i + 1], last_only=True) for i in learned)
        else:
            yield self._encode(messages, last_only)

    def _pieces(
        self, messages: Sequence[Message], answering: bool = False, last_only: bool = False
    ) -> Iterator[tuple[list[int], bool]]:
        """The tokens that each piece of the template adds to the one before it, or of a piece alone where a
        token would span both: so a prompt has the tokens that training has before its answer.

        SentencePiece starts a text with a space, but not what continues one.
        """
        before = ""
        for text, is_answer in self._texts(messages, answering, last_only):
            head, joined = self.read(before), self.read(before + text)
            yield joined[len(head) :] if joined[: len(head)] == head else self.read(text), is_answer
            before = text or before

    def _texts(self, messages: Sequence[Message], answering: bool, last_only: bool) -> list[tuple[str, bool]]:
        try:
            return self.template.pieces(messages, answering)
        except RewrittenError:
            if not (answering or last_only):
                raise
            return self.template.pieces(messages, answering, last=True)

    def _checked(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as the template gets them."""
        messages = joined_system(messages) if self._joins_system else messages
        for number, message in enumerate(messages, 1):
            texts = [*texts_in(message)]
            for name in self._special.values():
                if any(name in text for text in texts):
                    raise UserError(
                        f"message {number} has {name!r}, which is a special token: write it otherwise"
                    )
        self.template.check_written(messages)
        if messages[0]["role"] == "system":
            self._check_system(messages)
        return messages

    def _check_system(self, messages: Sequence[Message]) -> None:
        """Raises `UserError` with a remedy if the template refuses only the system's message."""
        try:
            self.template.render(messages)
        except UserError as error:
            with contextlib.suppress(UserError):
                self.template.render(joined_system(messages))
                remedy = "data.system_role=user puts the system's message before that of the user"
                error = UserError(f"{error}; {remedy}")
            raise error from None

    def read(self, text: str) -> list[int]:
        """The tokens of a text in which names of special tokens are these."""
        return self._backend.encode(text, add_special_tokens=False).ids
