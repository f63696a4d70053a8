"""Chat templates: a conversation as one text, in pieces that are answers and pieces that are not."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer.data.chat.message_fields import CALLS, REASONING, TOOLS, changes, fields_of, tools_of
from transformer.data.chat.template_process import RENDERER, REWRITES, View, additions
from transformer.data.sources.base import check_text
from transformer.data.tokenization.tokenizer_settings import SETTINGS, TEMPLATE, chat_template_in
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError, brief
from transformer.json_text import parse_json

Message = Mapping[str, Any]
"""{"role": one of `ROLES`, "content": its text}, with "weight": 0 for an answer that is not to be learned,
and what else it says (see `message_fields`)."""

ROLES = ("system", "user", "assistant", "tool")
"""Who may speak; an answer is a message of the assistant."""

SPEAKERS = {"human": "user", "gpt": "assistant", "observation": "tool"}
"""Roles of ShareGPT's messages, {"from": "human", "value": "..."}, that have another name here."""

UNREAD = ("function_call", "functions")
"""Keys of a message that say more than its text. They are not read, so a message that has one is refused."""

PLAIN = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message.role }}:\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
"""The template `plain`: no text can end a message, because the end token is never encoded from text."""

ABSENT = {TOOLS: None, "documents": None}
"""Variables that templates ask for and a conversation may lack; they test it with `is not none`."""


class RewrittenError(UserError):
    """A template that writes earlier messages otherwise when others follow."""


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the names of the special tokens that it may use, {"eos_token": "</s>"}.

    It is rendered in a sandbox in which it can change nothing and call nothing of Python's, and unless it is
    `plain` by a process whose time and memory are limited. `file` is the one that it is from, for messages.
    """

    source: str = PLAIN
    tokens: Mapping[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)

    @classmethod
    def read(cls, path: str | Path) -> "ChatTemplate":
        """The template in a file, a `tokenizer_config.json` or a text in Jinja's language.

        Raises:
          UserError: the file cannot be read, or has no template.
        """
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8-sig")
            source = chat_template_in(parse_json(text)) if str(path).endswith(".json") else text
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{path}: cannot be read ({why})") from None
        if not source:
            raise UserError(f"{path}: there is no chat template in it")
        return cls(source, file=str(path))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        """The template that is kept with a tokenizer; without one `plain`."""
        if not tokenizer.chat_template:
            return cls()
        files = [tokenizer.folder / name for name in (TEMPLATE, SETTINGS)] if tokenizer.folder else []
        return cls(tokenizer.chat_template, file=next((str(file) for file in files if file.is_file()), ""))

    def pieces(
        self, messages: Sequence[Message], answering: bool = False, last: bool = False
    ) -> list[tuple[str, bool]]:
        """The conversation up to its last answer, with `answering` up to the beginning of the next one:
        (text, whether it is an answer to learn with what ends it).

        Answer i is what the messages up to i add to those before it and the beginning of an answer. With
        `last` all before the last answer, or with `answering` before the next one, is one piece.

        Raises:
          RewrittenError: the template writes earlier messages otherwise when others follow.
          UserError: the template refuses the messages.
        """
        views = [
            view
            for i, message in enumerate(messages)
            if message["role"] == "assistant"
            for view in ((i, True), (i + 1, False))
        ]
        views = ([] if answering else views[-2:]) if last else views
        views += [(len(messages), True)] if answering else []
        return [
            (text, not opens and messages[count - 1].get("weight") != 0)
            for text, (count, opens) in zip(self._additions(messages, views), views, strict=True)
        ]

    def render(self, messages: Sequence[Message], answering: bool = False) -> str:
        """The text of the messages, with `answering` and the beginning of an answer. Raises as `pieces`."""
        return self._additions(messages, [(len(messages), answering)])[0]

    def check_written(self, messages: Sequence[Message]) -> None:
        """Raises `UserError` if the template leaves out reasoning, a call, the result of a tool or the tools,
        which would be lost without notice; the message names it."""
        for part, there, without in changes(messages):
            if self.render(there) == self._written(without):
                why = (
                    f"{self._name} writes the same without it; leave it out, or choose another data.template"
                )
                raise UserError(f"{part} is not read: {why}")

    def _written(self, messages: Sequence[Message]) -> str | None:
        with contextlib.suppress(UserError):
            return self.render(messages)
        return None

    def _additions(self, messages: Sequence[Message], views: Sequence[View]) -> list[str]:
        render = additions if self.source == PLAIN else RENDERER.additions
        passed = [{key: value for key, value in message.items() if key != TOOLS} for message in messages]
        tools = {TOOLS: messages[0][TOOLS]} if messages and TOOLS in messages[0] else {}
        reply = render(self.source, {**ABSENT, **self.tokens, **tools}, passed, views)
        if "line" in reply:
            raise UserError(f"line {reply['line']} of {self._name}: {reply['fault']}")
        if "fault" in reply:
            kind = RewrittenError if reply["fault"] == REWRITES else UserError
            raise kind(f"{self._name} {reply['fault']}")
        return reply["added"]

    @property
    def _name(self) -> str:
        return f"the chat template of {self.file}" if self.file else "the chat template"


def check_messages(value: Any) -> list[Message]:
    """The messages of a conversation, {"role", "content"} or ShareGPT's {"from", "value"}. Of a content in
    parts of text these are joined. An answer with `weight` 0 or `train` false is not learned.

    Raises:
      UserError: it is not a list of messages with a role and a text, an answer is empty, or a message has
        something that is not read.
    """
    if not isinstance(value, list) or not value:
        raise UserError(f"expected messages, each with role and content; found {_short(value)}")
    return [_checked(message, f"message {number}") for number, message in enumerate(value, 1)]


def _checked(message: Any, where: str) -> Message:
    if isinstance(message, dict) and {"from", "value"} <= message.keys() and not message.get("role"):
        role = SPEAKERS.get(str(message["from"]), message["from"])
        message = message | {"role": role, "content": message["value"]}
    if isinstance(message, dict) and message.get(CALLS) and message.get("content") is None:
        message = message | {"content": ""}
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise UserError(f"{where}: expected role and content, found {_short(message)}")
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise UserError(f"{where}: role {role!r}; expected one of {', '.join(ROLES)}")
    if unread := [key for key in UNREAD if message.get(key)]:
        entry = f"{unread[0]} {_short(message[unread[0]])}"
        raise UserError(f"{where}: {entry}, which is not read; write it into the content, or leave it out")
    if isinstance(content, list):
        content = _joined(content, where)
    if not isinstance(content, str):
        raise UserError(f"{where}: content is {type(content).__name__}; expected text")
    check_text(content, lambda: where)
    fields = fields_of(message, where)
    if role == "assistant" and not content.strip() and not fields.keys() & {CALLS, *REASONING}:
        raise UserError(f"{where}: the answer is empty")
    return {"role": role, "content": content} | _weight(message, where) | fields


def _joined(parts: list[Any], where: str) -> str:
    """The text of parts, [{"type": "text", "text": "..."}, ...]."""
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        wrong = next(part for part, text in zip(parts, texts, strict=True) if not isinstance(text, str))
        raise UserError(f"{where}: a part of the content is {_short(wrong)}; expected parts of type text")
    return "".join(map(str, texts))


def _weight(message: Message, where: str) -> dict[str, int]:
    """{"weight": 0} of an answer that is not to be learned, else {}."""
    for key in ("weight", "train"):
        value = message.get(key)
        if value not in (None, 0, 1):
            raise UserError(f"{where}: {key} {_short(value)}; expected 0 or 1, false or true")
        if value and message["role"] != "assistant":
            raise UserError(f"{where}: {key} {value!r} of the {message['role']}; only answers are learned")
    unlearned = message["role"] == "assistant" and 0 in (message.get("weight"), message.get("train"))
    return {"weight": 0} if unlearned else {}


def with_tools(messages: list[Message], tools: Any) -> list[Message]:
    """The messages of a conversation with these tools, if there are any. Raises as `tools_of`."""
    there = tools_of(tools) if tools else []
    return [{**messages[0], TOOLS: there}, *messages[1:]] if there else messages


def conversation(text: str) -> list[Message]:
    """The messages of a text: those of a JSON list of messages, or of a record with `messages`; any other
    text is a message of the user. Raises as `check_messages`."""
    value: Any = None
    if text.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            value = parse_json(text)
    if isinstance(value, dict) and "messages" in value:
        return with_tools(check_messages(value["messages"]), value.get(TOOLS))
    if isinstance(value, list) and any(isinstance(item, dict) and "role" in item for item in value):
        return check_messages(value)
    return [{"role": "user", "content": text}]


def _short(value: Any) -> str:
    return brief(repr(value), 60)
