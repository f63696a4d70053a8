"""JSON of unknown origin: objects of bounded size, without repeated names, NaN or infinities."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from transformer.errors import UserError
from transformer.json_text import parse_json

MAX_FILE_BYTES = 1 << 28
"""Bytes of a file. An index or a tokenizer has some tens of megabytes at most."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, which may start with a byte order mark.

    Raises:
      UserError: it cannot be read, is too long, or is not a JSON object (see `parse_object`).
    """
    return parse_object(_bytes(path), path)


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path}: {path.stat().st_size:,} bytes; expected at most {MAX_FILE_BYTES:,}")
        return path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def parse_object(text: bytes, path: Path) -> dict[str, Any]:
    """The object in UTF-8 text of the file `path`.

    Raises:
      UserError: it is not a JSON object, repeats a name, or has NaN or an infinity.
    """
    try:
        value = parse_json(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
    except ValueError as error:
        raise UserError(f"{path}: not readable as JSON ({str(error)[:160]})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON {type(value).__name__}; expected an object, {{...}}")
    return value


def read_list(path: Path) -> list[Any]:
    """The list in a JSON file, by the rules of `read_object`."""
    text = b'{"": ' + _bytes(path) + b"}"
    if not isinstance(value := parse_object(text, path)[""], list):
        raise UserError(f"{path}: a JSON {type(value).__name__}; expected a list, [...]")
    return value


def as_list(value: Any) -> list[Any]:
    """The values of a field that may be one value or a list: `"eos_token_id": 2` is `[2]`, null `[]`."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:80]!r} is there twice")
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")
