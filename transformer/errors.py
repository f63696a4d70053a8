"""`UserError`, the exception for mistakes of the user, and errors after which work may continue."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake of the user: the message is one line that names the key, file or row, the value found and
    what would be valid. `launch.py` prints it and exits with code 2."""


class UnknownMember(UserError):
    """A value that is not a member of its family, which a file of the user may add."""


class Recoverable(UserError):
    """Training ended with an error that can be set right in the run's folder; the same command continues."""


class MeshError(UserError):
    """The devices that a config asks for are not those of this machine, or do not divide its batches."""


class StorageError(Exception):
    """A write failed, through no mistake in the command, which continues when it is given again.
    The message is one line; `launch.py` prints it and exits with code 1."""


def suggest(name: object, valid: Iterable[str], otherwise: str = "expected one of ") -> str:
    """The end of an error about an unknown name: the most similar valid name, or all valid names."""
    near = difflib.get_close_matches(str(name), valid := list(valid), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise + ", ".join(valid)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; the name of its type, if it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def brief(text: str, longest: int, end: int = 0) -> str:
    """A text of at most `longest` characters; of a longer one the beginning, and the last `end` of them."""
    return text if len(text) <= longest else f"{text[: longest - end - 1]}…{text[len(text) - end :]}"


def printable(text: str) -> str:
    """A text for a terminal: control characters, which a file or a name may have, are escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
