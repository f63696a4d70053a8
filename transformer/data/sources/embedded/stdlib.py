"""The default corpus: the source of the Python standard library, which comes with every Python."""

import contextlib
import functools
import hashlib
import os
import platform
import sysconfig
from pathlib import Path
from typing import Any

from transformer.data.cache.disk_cache import digest
from transformer.data.sources.base import SPLITS, Source, falls_in
from transformer.data.sources.options import Options
from transformer.errors import UserError

LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "ensurepip", "_vendor"}
"""Folders that are left out: tests, installed and vendored packages."""


@functools.cache
def library_files() -> dict[str, Path]:
    """Path inside the library -> file, for modules that are the same on every machine with this Python."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(set(inside) - LEFT_OUT)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            files[path.relative_to(root).as_posix()] = path
    # These are written when Python is built, with paths and the compiler of that machine.
    built = ("_sysconfigdata", "config-")
    return {name: path for name, path in files.items() if not name.startswith(built)}


@functools.cache
def fingerprint() -> str:
    """An identifier of the Python version and the selected files, different for a patched library."""
    sizes = {name: path.stat().st_size for name, path in library_files().items()}
    return f"python-{platform.python_version()}-{digest(sizes, SPLITS)[:8]}"


def in_split(name: str, split: str) -> bool:
    """Whether the file is in the split, by a hash of its name."""
    return falls_in(split, f"python/{name}".encode())


class StandardLibrary(Source):
    """`stdlib`: one document per file, with its `path`, in the order of a hash of split and path (the order
    of TFDS for examples with these keys).

    Raises:
      UserError: an argument, or a field other than text and path.
    """

    divided_by = "path"
    are_apart = True

    def __init__(self, argument: str, split: str, options: Options) -> None:
        if argument:
            raise UserError(f"stdlib:{argument}: stdlib takes no argument")
        if options.field not in ("text", "path"):
            raise UserError(f"stdlib: no field {options.field!r}; fields there: text, path")
        if not library_files():
            raise UserError(f"stdlib: this Python came without source text in {sysconfig.get_path('stdlib')}")
        self.name, self.field, self._split = f"stdlib ({split})", options.field, split
        self.identity = f"stdlib {fingerprint()} {split} {self.field}"

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._records[index]

    def place(self, index: int) -> str:
        """The path of a module in the library."""
        return self[index]["path"]

    @functools.cached_property
    def _records(self) -> list[dict[str, str]]:
        files = {name: path for name, path in library_files().items() if in_split(name, self._split)}
        records = []
        for name in sorted(files, key=self._hash):
            with contextlib.suppress(UnicodeDecodeError):  # a few modules declare another encoding
                records.append({"text": files[name].read_bytes().decode(), "path": name})
        return records

    def _hash(self, name: str) -> bytes:
        return hashlib.md5(f"{self._split}{name}".encode(), usedforsecurity=False).digest()
