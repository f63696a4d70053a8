"""Functions of the Python standard library with summaries, the first lines of their docstrings."""

from collections.abc import Iterator
from pathlib import Path

from transformer.data.sources.base import SPLITS
from transformer.data.sources.embedded.stdlib import in_split
from transformer.data.sources.embedded.stdlib_functions import StdlibFunctions, functions

SHORTEST = 10
"""The least number of characters of a summary."""


class Docstrings(StdlibFunctions):
    """`docstrings`: {"source": a function without its docstring, "target": the first line of the docstring,
    "name": of the function, "path": of the module}, split by a hash of the module's path."""

    divided_by = "path"

    KIND, VERSION = "docstrings", 1
    FIELDS = ("source", "target", "name", "path")

    @classmethod
    def read(cls, name: str, path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The functions of a module that have a docstring."""
        split = next(split for split in SPLITS if in_split(name, split))
        for node, docstring, text in functions(path):
            summary = docstring.split("\n")[0].strip()
            if len(summary) >= SHORTEST:
                yield split, (text, summary, node.name, name)
