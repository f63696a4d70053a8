"""Functions of the Python standard library, labelled with their packages."""

from collections.abc import Iterator
from pathlib import Path

from transformer.data.sources.base import SPLITS, falls_in
from transformer.data.sources.embedded.stdlib_functions import StdlibFunctions, functions

PACKAGES = ("asyncio", "email", "encodings", "idlelib", "importlib", "multiprocessing", "tkinter", "unittest")
SHORTEST = 80
"""The least number of characters of a function; shorter ones are too similar."""


class Snippets(StdlibFunctions):
    """`snippets`: {"text": a function without its docstring, "label": its package, "path": of its module},
    split by a hash of the text, so that duplicates stay in one split."""

    divided_by = "text"
    are_apart = True

    KIND, VERSION = "snippets", 1
    FIELDS = ("text", "label", "path")

    @classmethod
    def read(cls, name: str, path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The functions of a module of `PACKAGES`."""
        package = name.split("/")[0]
        if package in PACKAGES:
            for _, _, text in functions(path):
                if len(text) >= SHORTEST:
                    split = next(split for split in SPLITS if falls_in(split, text.encode()))
                    yield split, (text, package, name)
