"""Reading JSON that may come from anywhere."""

import gc
import json
from collections.abc import Callable
from typing import Any


def parse_json(text: str | bytes, read: Callable[..., Any] = json.loads, **options: Any) -> Any:
    """The value of a JSON text, or what else `read(text, **options)` makes of it; whatever is wrong with the
    text is a `ValueError`.

    Raises:
      ValueError: it is not JSON, or one that Python does not read: nested too deeply, or with an integer of
        too many digits.
    """
    collects = gc.isenabled()
    gc.disable()  # a text nested to Python's limit leaves no room there to finalize what is collected
    try:
        return read(text, **options)
    except (ValueError, RecursionError) as error:
        raise _value_error(error) from None
    finally:
        if collects:
            gc.enable()


def read_json_lines(text: str) -> list[Any]:
    """The values of JSON texts, one in each line, without empty lines; for `parse_json`, in about half the
    time that it takes for each line."""
    values, scan = [], json.JSONDecoder().scan_once  # type: ignore[attr-defined]
    try:
        for line in text.split("\n"):
            if line := line.strip(" \t\r"):
                value, end = scan(line, 0)
                if end < len(line):
                    raise json.JSONDecodeError("Extra data", line, end)
                values.append(value)
    except StopIteration as error:
        raise json.JSONDecodeError("Expecting value", line, error.value) from None
    return values


def _value_error(error: Exception) -> ValueError:
    if isinstance(error, json.JSONDecodeError):  # has the line
        return error
    if isinstance(error, RecursionError):
        return ValueError("it is nested too deeply")
    return ValueError("an integer has too many digits" if "int_max_str_digits" in str(error) else str(error))
