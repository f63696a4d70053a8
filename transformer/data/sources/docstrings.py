"""The embedded corpus of texts with summaries: functions of the Python standard library, and what the first
line of their docstring says of them."""

from collections.abc import Iterator
from pathlib import Path

from transformer.data.sources.base import SPLITS
from transformer.data.sources.stdlib import in_split
from transformer.data.sources.stdlib_functions import StdlibFunctions, functions

SHORTEST = 10
"""Characters of a summary; shorter ones say nothing."""


class Docstrings(StdlibFunctions):
    """`docstrings`: {"source": a function without its docstring, "target": the docstring's first line,
    "name": the function's, "path": its module's}; a hash of the module's path says in which split it is."""

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
