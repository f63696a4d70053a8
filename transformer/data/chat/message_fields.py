"""Fields of messages beside the text: reasoning, calls of tools, descriptions of tools."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer.data.sources.base import check_text
from transformer.errors import UserError, brief
from transformer.json_text import parse_json

REASONING = ("reasoning_content", "thinking")
"""Keys of an assistant's message with its reasoning, a text; templates read one of them."""

CALLS = "tool_calls"
"""The key of an assistant's calls: [{"type": "function", "function": {"name", "arguments"}}]."""

TOOLS = "tools"
"""The field of a record with descriptions of tools, kept in the first message of its conversation."""

ADDRESS = ("tool_call_id", "name")
"""Keys that say which call a message is the result of. A template may write them or not."""


def fields_of(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a message that are passed to the template as they are; empty ones are left out.

    Raises:
      UserError: reasoning or calls that are not the assistant's, or are of another form.
    """
    fields = {key: message[key] for key in (*REASONING, CALLS, *ADDRESS) if message.get(key)}
    if message.get(TOOLS):
        if not where.endswith(" 1"):
            raise UserError(f"{where}: {TOOLS}; expected them as a field of the record, or in message 1")
        fields |= {TOOLS: tools_of(message[TOOLS])}
    for key, value in fields.items():
        if key in (*REASONING, CALLS) and message["role"] != "assistant":
            raise UserError(f"{where}: {key} of the {message['role']}; only the assistant has them")
        if key not in (CALLS, TOOLS) and not isinstance(value, str):
            raise UserError(f"{where}: {key} is {type(value).__name__}; expected text")
        if key == CALLS and not (isinstance(value, list) and all(map(_is_call, value))):
            form = '[{"type": "function", "function": {"name": "...", "arguments": {}}}]'
            raise UserError(f"{where}: {key} {_short(value)}; expected {form}")
        for text in texts_in(value, where):
            check_text(text, lambda: where)
    return fields


def tools_of(value: Any) -> list[Any]:
    """The descriptions of tools in the field of a record, a list or the JSON of one.

    Raises:
      UserError: it is not a list of objects.
    """
    field = value
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise UserError(f"{TOOLS} is {_short(field)}; expected a list of objects, or the JSON of one")
    for text in texts_in(value, TOOLS):
        check_text(text, lambda: TOOLS)
    return value


def joined_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with that of the system, if it is the first, as the beginning of the user's after it."""
    if [message["role"] for message in messages[:2]] != ["system", "user"]:
        return [*messages]
    system, user, *rest = messages
    return [{**system, **user, "content": f"{system['content'].strip()}\n\n{user['content']}"}, *rest]


def written(message: Mapping[str, Any]) -> str:
    """All that a message says, without a template."""
    parts = [message["content"], *(message[key] for key in REASONING if key in message)]
    parts += [json.dumps(message[key], ensure_ascii=False) for key in (CALLS, TOOLS) if key in message]
    return "\n".join(part for part in parts if part)


def texts_in(value: Any, where: str = "") -> Iterator[str]:
    """All texts in a value of JSON.

    Raises:
      UserError: it has something that JSON has not, such as a date of a column.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from texts_in(key, where)
            yield from texts_in(entry, where)
    elif isinstance(value, list):
        for entry in value:
            yield from texts_in(entry, where)
    elif value is not None and not isinstance(value, bool | int | float):
        raise UserError(f"{where}: {_short(value)} is {type(value).__name__}; expected a value of JSON")


def changes(
    messages: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, list[Mapping[str, Any]], list[Mapping[str, Any]]]]:
    """(part, messages with it, the same messages without it or with another text there), for all that a
    template may leave out: two texts that are equal show that it does."""
    for i, message in enumerate(messages):
        before, where = [*messages[:i]], f"message {i + 1}"
        changed = [(key, _without(message, key)) for key in REASONING if key in message]
        calls = message.get(CALLS, [])
        for k in range(len(calls)):
            fewer = {CALLS: [*calls[:k], *calls[k + 1 :]]} if len(calls) > 1 else {}
            changed.append((f"call {k + 1} of {CALLS}", _without(message, CALLS) | fewer))
        if message["role"] == "tool":
            changed.append(("the result of a tool", {**message, "content": message["content"] + "x"}))
        for part, altered in changed:
            yield f"{where}: {part}", [*before, message], [*before, altered]
    if messages and TOOLS in messages[0]:
        yield TOOLS, [*messages], [_without(messages[0], TOOLS), *messages[1:]]


def _without(message: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != key}


def _is_call(value: Any) -> bool:
    """Whether a value is a call of a function, with the function's name in it or in its `function`."""
    function = value.get("function") or value if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str) and bool(function["name"])


def _short(value: Any) -> str:
    return brief(repr(value), 60)
