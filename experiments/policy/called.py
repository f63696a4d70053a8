"""Calls of tools in the text of an answer."""

import json
from collections.abc import Iterator
from typing import Any

ARGUMENTS = ("arguments", "parameters")
"""The keys of a call's arguments: in most templates, and in Llama's."""


def calls_in(text: str) -> Iterator[str]:
    """The calls in a text, each in a form in which equal calls are equal texts: JSON objects with a "name"
    and `ARGUMENTS`, whatever stands around them. The order of keys and white space do not matter, 1.0 is 1,
    and arguments may be the JSON of an object."""
    start = text.find("{")
    while start >= 0:
        value, end = _object(text, start)
        keys = [key for key in ARGUMENTS if key in value]
        is_call = keys and isinstance(value.get("name"), str)
        if is_call:
            arguments = value[keys[0]]
            if isinstance(arguments, str):
                arguments, _ = _object(arguments, 0)
            yield json.dumps([value["name"], arguments], sort_keys=True)
        start = text.find("{", end if is_call else start + 1)


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


DECODER = json.JSONDecoder(parse_float=_number)


def _object(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The JSON object that starts here and the index after it; without one {} and 0."""
    try:
        value, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        value, end = None, 0
    return (value, end) if isinstance(value, dict) else ({}, 0)
