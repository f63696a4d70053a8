"""Reading JSON that may come from anywhere."""

import gc
import json
from typing import Any


def parse_json(text: str | bytes, **options: Any) -> Any:
    """The value of a JSON text, as `json.loads` with `options`; whatever is wrong with it is a `ValueError`.

    Raises:
      ValueError: it is not JSON, or one that Python does not read: nested too deeply, or with an integer of
        too many digits.
    """
    collects = gc.isenabled()
    gc.disable()  # a text nested to Python's limit leaves no room there to finalize what is collected
    try:
        return json.loads(text, **options)
    except (ValueError, RecursionError) as error:
        raise _value_error(error) from None
    finally:
        if collects:
            gc.enable()


def _value_error(error: Exception) -> ValueError:
    if isinstance(error, json.JSONDecodeError):  # has the line
        return error
    if isinstance(error, RecursionError):
        return ValueError("it is nested too deeply")
    return ValueError("an integer has too many digits" if "int_max_str_digits" in str(error) else str(error))
