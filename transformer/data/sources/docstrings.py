"""The embedded corpus of texts with summaries: functions of the Python standard library, and what the first
line of their docstring says of them."""

import ast
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer.data.sources.base import Options, Source
from transformer.data.sources.standard_library import fingerprint, in_split, library_files
from transformer.data.storage import build_once
from transformer.errors import UserError

FIELDS = ("source", "target", "name", "path")
LONGEST = 4000
"""Characters of a function; longer ones are left out."""
SHORTEST = 10
"""Characters of a summary; shorter ones say nothing."""


class Docstrings(Source):
    """`docstrings`: {"source": a function without its docstring, "target": the docstring's first line,
    "name": the function's, "path": its module's}; a hash of the module's path says in which split it is.

    Raises:
      UserError: there is an argument, where none is known, or another field.
    """

    def __init__(self, argument: str, split: str, options: Options) -> None:
        if argument:
            raise UserError(f"docstrings:{argument}: docstrings takes no argument")
        if options.field not in FIELDS:
            raise UserError(f"docstrings: no field {options.field!r}; fields there: {', '.join(FIELDS)}")
        self.name = f"docstrings ({split})"
        self.field = options.field
        self.identity = f"docstrings 1 {fingerprint()} {split} {self.field}"
        self._file = options.folder / "docstrings" / f"1-{fingerprint()}" / f"{split}.json"

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(FIELDS, self._records[index], strict=True))

    @functools.cached_property
    def _records(self) -> list[list[str]]:
        build_once(self._file.parent, _write)
        return json.loads(self._file.read_text(encoding="utf-8"))


def _write(folder: Path) -> None:
    """All splits at once: reading the library is most of the work."""
    for split in ("train", "validation", "test"):
        found = [
            (*parts, name)
            for name, path in library_files().items()
            if in_split(name, split)
            for parts in functions(path)
        ]
        (folder / f"{split}.json").write_text(json.dumps(found), encoding="utf-8")


def functions(path: Path) -> Iterator[tuple[str, str, str]]:
    """The text, the docstring's first line and the name of each function of a module that has all three."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a few files are there to fail
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.body) > 1:
            summary = (ast.get_docstring(node) or "").split("\n")[0].strip()
            if len(summary) >= SHORTEST:
                text = ast.unparse(type(node)(**vars(node) | {"body": node.body[1:]}))
                if len(text) <= LONGEST:
                    yield text, summary, node.name
