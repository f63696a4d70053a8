"""Conversations and preferences as sources."""

import contextlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from transformer.data.cache.disk_cache import digest
from transformer.data.chat.chat_template import Message, check_messages, with_tools
from transformer.data.chat.message_fields import CALLS, TOOLS, written
from transformer.data.sources import Source
from transformer.data.sources.joined_fields import JoinedFields
from transformer.data.sources.options import before_answer
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
        """The fields of a record, "answer", the text of the answer that it ends with, and "tool_calls", the
        calls of tools there; "" and [] if there are none."""
        last = self.conversations(index)[0][-1]
        answer = last["content"] if last["role"] == "assistant" else ""
        return self._parts[0][index] | {"answer": answer, CALLS: last.get(CALLS, [])}

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
