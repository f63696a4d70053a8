"""Records in other forms of JSON than an object in each line: arrays, and fields within fields."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformer.data.cache.disk_cache import build_once, digest
from transformer.errors import UserError
from transformer.json_text import parse_json

SAMPLE = 1 << 12
"""Bytes at the beginning of a file in which an array starts."""


def is_array(path: Path) -> bool:
    """Whether a file starts as a JSON array does."""
    with path.open("rb") as file:
        return file.read(SAMPLE).removeprefix(BOM_UTF8).lstrip()[:1] == b"["


def as_lines(path: Path, name: Path, folder: Path) -> Path:
    """The items of the JSON array in a file, one in each line of another file, in `folder` of prepared data;
    `name` is that of the file for messages.

    Raises:
      UserError: it is not such a file.
    """
    stat = path.stat()

    def build(new: Path) -> None:
        try:
            items = parse_json(path.read_bytes().removeprefix(BOM_UTF8))
        except ValueError as error:
            raise UserError(f"{name}: not JSON ({error}), and it begins as an array does") from None
        with open(new / "text", "w", encoding="utf-8", errors="surrogatepass") as lines:
            lines.writelines(json.dumps(item) + "\n" for item in items)

    return build_once(folder / "arrays" / digest(str(path), stat.st_size, stat.st_mtime_ns), build) / "text"


def add_nested(record: dict[str, Any], names: Iterable[str]) -> None:
    """Adds to a record the fields of these names that are within others: "translation.en" is "en" in the
    object in "translation"."""
    for name in names:
        value: Any = record
        for part in () if name in record else name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if name not in record and value is not None:
            record[name] = value
