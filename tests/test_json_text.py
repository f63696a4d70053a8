"""JSON lines in one pass, against `json.loads` of each line."""

import json
import math

import hypothesis
import pytest
from hypothesis import strategies

from transformer.json_text import parse_json, read_json_lines

LEAVES = (
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-(2**70), 2**70)
    | strategies.floats()
    | strategies.text(strategies.characters(codec=None))
)
VALUES = strategies.recursive(
    LEAVES, lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner)
)

PIECES = [
    "",
    "{",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\\ud800",
    "NaN",
    "-",
    "1e999",
    "0",
    "\ufeff",
    "\v",
    " ",
    "\x00",
    "é",
]
"""What is put into a text, so that it is often not JSON."""


def outcome(read, text):
    """The values, in a form in which NaN is equal to itself, or the error with its line."""
    try:
        return "values", repr(read(text))
    except json.JSONDecodeError as error:
        return error.msg, error.doc
    except ValueError as error:
        return "other", str(error)


def each_line(text):
    return [
        json.JSONDecoder().decode(line) for line in (each.strip(" \t\r") for each in text.split("\n")) if line
    ]


@pytest.mark.thorough
@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(strategies.lists(VALUES, max_size=3), strategies.booleans(), strategies.data())
def test_lines_have_the_values_or_the_error_of_each_line_alone(values, ascii_only, data):
    text = "\n".join(json.dumps(value, ensure_ascii=ascii_only) for value in values)
    if data.draw(strategies.booleans()):
        start = data.draw(strategies.integers(0, len(text)))
        end = data.draw(strategies.integers(start, min(len(text), start + 3)))
        text = (
            text[:start] + data.draw(strategies.sampled_from([*PIECES, "\n", "\r\n", " \n\n"])) + text[end:]
        )
    assert outcome(read_json_lines, text) == outcome(each_line, text)


@pytest.mark.parametrize("text", ["", "\n", " \r\n\t\n"])
def test_empty_lines_have_no_values(text):
    assert parse_json(text, read_json_lines) == []


def test_numbers_beyond_those_of_other_languages_are_read_whole():
    found = parse_json(f"{2**64}\n-Infinity\nNaN", read_json_lines)
    assert found[:2] == [2**64, -math.inf] and math.isnan(found[2])
