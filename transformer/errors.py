"""The one exception that means "your input, not our code", and the end of its message for unknown names."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """An error in what the user gave: its message is one line that names the key, file or row,
    the value found and what would be valid. `launch.py` prints it and exits with code 2."""


def suggest(name: object, valid: Iterable[str], otherwise: str = "expected one of ") -> str:
    """The end of an error about an unknown name: the one that was meant, or all that are valid."""
    near = difflib.get_close_matches(str(name), valid := list(valid), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise + ", ".join(valid)
