"""Which files of the Python standard library make the embedded corpus, and how they are divided."""

import functools
import os
import platform
import sysconfig
from pathlib import Path

from transformer.data.sources.base import SPLITS, falls_in
from transformer.data.storage import digest

LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "ensurepip", "_vendor"}
"""Folders of tests, of what is installed beside the library or vendored into it."""


@functools.cache
def library_files() -> dict[str, Path]:
    """By the path inside the library, every module that is the same on every machine of this Python."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(set(inside) - LEFT_OUT)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            files[path.relative_to(root).as_posix()] = path
    # These are written when Python is built, with the paths and the compiler of that machine.
    built = ("_sysconfigdata", "config-")
    return {name: path for name, path in files.items() if not name.startswith(built)}


@functools.cache
def fingerprint() -> str:
    """Names the version of Python and the selection made of its files; a patched library has another."""
    sizes = {name: path.stat().st_size for name, path in library_files().items()}
    return f"python-{platform.python_version()}-{digest(sizes, SPLITS)[:8]}"


def in_split(name: str, split: str) -> bool:
    """Whether the file is in the split: a hash of its name alone decides, on every machine alike."""
    return falls_in(split, f"python/{name}".encode())
