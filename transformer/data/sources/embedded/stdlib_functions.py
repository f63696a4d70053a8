"""The base class of data sets made from functions of the Python standard library."""

import ast
import functools
import json
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer.data.cache.disk_cache import build_once, load_values
from transformer.data.sources.base import SPLITS, Source
from transformer.data.sources.embedded.stdlib import fingerprint, library_files
from transformer.data.sources.options import Options
from transformer.errors import UserError

MAX_FUNCTION_CHARACTERS = 4000
"""The most characters of a function; longer ones are left out."""


class StdlibFunctions(Source):
    """Records with the fields `FIELDS`, made once from all modules and cached in the data folder.

    Raises:
      UserError: an argument, or an unknown field.
    """

    KIND: str
    VERSION: int
    FIELDS: tuple[str, ...]

    def __init__(self, argument: str, split: str, options: Options) -> None:
        if argument:
            raise UserError(f"{self.KIND}:{argument}: {self.KIND} takes no argument")
        if options.field not in self.FIELDS:
            there = ", ".join(self.FIELDS)
            raise UserError(f"{self.KIND}: no field {options.field!r}; fields there: {there}")
        self.name = f"{self.KIND} ({split})"
        self.field = options.field
        self.identity = f"{self.KIND} {self.VERSION} {fingerprint()} {split} {self.field}"
        self._file = options.folder / self.KIND / f"{self.VERSION}-{fingerprint()}" / f"{split}.json"

    @classmethod
    @abstractmethod
    def read(cls, name: str, path: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """(split, record) for each record of a module."""

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(self.FIELDS, self._records[index], strict=True))

    @functools.cached_property
    def _records(self) -> list[list[Any]]:
        build_once(self._file.parent, self._write)
        return load_values(self._file)

    @classmethod
    def _write(cls, folder: Path) -> None:
        """Writes all splits at once: parsing the library takes most of the time."""
        by_split: dict[str, list[tuple[Any, ...]]] = {split: [] for split in SPLITS}
        for name, path in library_files().items():
            for split, record in cls.read(name, path):
                by_split[split].append(record)
        for split, records in by_split.items():
            (folder / f"{split}.json").write_text(json.dumps(records), encoding="utf-8")


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str, str]]:
    """Each function of a module, its docstring, and its text without the docstring."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # some test files do not parse
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            body = node.body[1:] if docstring else node.body
            if body:
                text = ast.unparse(type(node)(**vars(node) | {"body": body}))
                if len(text) <= MAX_FUNCTION_CHARACTERS:
                    yield node, docstring, text
