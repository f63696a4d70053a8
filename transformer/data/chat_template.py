"""Chat templates: a conversation as one text, in pieces that are answers and pieces that are not."""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from transformer.data.sources.base import check_text
from transformer.data.tokenizers import chat_template_in
from transformer.errors import UserError, brief
from transformer.json_text import parse_json

Message = Mapping[str, Any]
"""{"role": one of `ROLES`, "content": its text}, with "weight": 0 for an answer that is not to be learned."""

ROLES = ("system", "user", "assistant")
"""Who may speak; an answer is a message of the assistant."""

SPEAKERS = {"human": "user", "gpt": "assistant"}
"""Roles of ShareGPT's messages, {"from": "human", "value": "..."}, that have another name here."""

UNREAD = ("tool_calls", "function_call", "tools", "functions", "reasoning_content", "thinking")
"""Keys of a message that say more than its text. They are not read, so a message that has one is refused."""

PLAIN = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message.role }}:\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
"""The template `plain`: no text can end a message, because the end token is never encoded from text."""

ABSENT = {"tools": None, "documents": None}
"""What templates ask for and no conversation has here; they test it with `is not none`."""

LARGEST = 1 << 20
"""The largest number that a template may multiply or raise to a power."""


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the names of the special tokens that it may use, {"eos_token": "</s>"}.

    It is rendered in a sandbox in which it can change nothing and call nothing of Python's.
    """

    source: str = PLAIN
    tokens: Mapping[str, str] = field(default_factory=dict)

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
            raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        if not source:
            raise UserError(f"{path}: there is no chat template in it")
        return cls(source)

    def pieces(self, messages: Sequence[Message], answering: bool = False) -> list[tuple[str, bool]]:
        """The conversation up to its last answer, with `answering` up to the beginning of the next one:
        (text, whether it is an answer to learn with what ends it).

        Answer i is what the messages up to i add to those before it and the beginning of an answer.

        Raises:
          UserError: the template refuses the messages, or writes earlier ones otherwise when others follow.
        """
        found, done = [], ""
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self.render(messages[:i], True), self.render(messages[: i + 1])
                found += [(_added(done, before), False), (_added(before, after), message.get("weight") != 0)]
                done = after
        if answering:
            found.append((_added(done, self.render(messages, True)), False))
        return found

    def render(self, messages: Sequence[Message], answering: bool = False) -> str:
        """The text of the messages, with `answering` and the beginning of an answer. Raises as `pieces`."""
        values = {"messages": [*map(dict, messages)], "add_generation_prompt": answering}
        try:
            return _compile(self.source).render({**ABSENT, **self.tokens, **values})
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"line {error.lineno} of the chat template: {error.message}") from None
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UserError(f"the chat template refuses it: {' '.join(str(error).split())}") from None


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
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise UserError(f"{where}: expected role and content, found {_short(message)}")
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise UserError(f"{where}: role {role!r}; expected one of {', '.join(ROLES)}")
    if unread := [key for key in UNREAD if message.get(key)]:
        found = f"{unread[0]} {_short(message[unread[0]])}"
        raise UserError(f"{where}: {found}, which is not read; write it into the content, or leave it out")
    if isinstance(content, list):
        content = _joined(content, where)
    if not isinstance(content, str):
        raise UserError(f"{where}: content is {type(content).__name__}; expected text")
    check_text(content, lambda: where)
    if role == "assistant" and not content.strip():
        raise UserError(f"{where}: the answer is empty")
    return {"role": role, "content": content} | _weight(message, where)


def _joined(parts: list[Any], where: str) -> str:
    """The text of parts, [{"type": "text", "text": "..."}, ...]."""
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        other = next(part for part, text in zip(parts, texts, strict=True) if not isinstance(text, str))
        raise UserError(f"{where}: a part of the content is {_short(other)}; expected parts of type text")
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


def conversation(text: str) -> list[Message]:
    """The messages of a text: those of a JSON list of messages, or of a record with `messages`; any other
    text is a message of the user. Raises as `check_messages`."""
    value: Any = None
    if text.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            value = parse_json(text)
    if isinstance(value, dict) and "messages" in value:
        return check_messages(value["messages"])
    if isinstance(value, list) and any(isinstance(each, dict) and "role" in each for each in value):
        return check_messages(value)
    return [{"role": "user", "content": text}]


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, with which templates mark answers: the text inside."""

    tags = {"generation"}  # noqa: RUF012 (the name that Jinja reads)

    def parse(self, parser: Any) -> list[nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a template also cannot make a text as large as the memory."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The product or the power of small numbers."""
        if any(not isinstance(each, int | float) or abs(each) > LARGEST for each in (left, right)):
            raise SecurityError(f"{operator} of other than small numbers")
        if operator == "**" and abs(right) > 64:
            raise SecurityError("** with a large exponent")
        return super().call_binop(context, operator, left, right)


@functools.lru_cache(16)
def _compile(source: str) -> jinja2.Template:
    extensions = ["jinja2.ext.loopcontrols", Generation]
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _refuse
    # No clock: the tokens of a conversation do not depend on the day.
    return sandbox.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    options = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> Iterator[None]:
    raise jinja2.TemplateError(message)


def _added(before: str, after: str) -> str:
    if not after.startswith(before):
        raise UserError("the chat template writes earlier messages otherwise when others follow")
    return after[len(before) :]


def _short(value: Any) -> str:
    return brief(repr(value), 60)
