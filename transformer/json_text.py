"""Reading JSON that may come from anywhere."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, as `json.loads`; whatever is wrong with it is a `ValueError`.

    Raises:
      ValueError: it is not JSON, or one that Python does not read: nested too deeply, or with an integer of
        too many digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        short = "an integer has too many digits" if "int_max_str_digits" in str(error) else str(error)
        raise ValueError(short) from None
