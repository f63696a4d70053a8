"""Reading a checkpoint that may be damaged, or from anywhere.

TensorStore itself checks that no name leads out of the folder, and that no chunk unpacks into more than its
size. It follows links, waits for pipes, and trusts the size of chunks that a checkpoint gives.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from transformer.errors import Recoverable, UserError
from transformer.run_folder import check_run_file

CHUNK = re.compile(r"(\d+\.)*\d+")
"""The name of a file that holds one chunk of an array, where they are not in a database."""


class DamagedCheckpoint(Recoverable):
    """A checkpoint that cannot be read, or whose arrays are not those that were written."""

    def __init__(self, path: str | Path, why: object) -> None:
        self.path = str(path)
        super().__init__(f"{path}: the checkpoint is damaged: {str(why).partition(chr(10))[0][:160]}")


@contextlib.contextmanager
def untrusted(path: str) -> Iterator[Path]:
    """The folder of a checkpoint, whose files are checked; errors of reading it name it, by `refuse`."""
    folder = Path(path)
    try:
        check_files(folder)
        yield folder
    except Exception as error:
        refuse(folder, error)
        raise


def refuse(path: Path, error: Exception) -> None:
    """Raises an error of reading a checkpoint as one of this checkpoint, for which orbax has no class of its
    own; returns after one of this machine."""
    if isinstance(error, PermissionError):
        raise UserError(f"{error.filename or path}: cannot be read (permission denied)") from None
    if isinstance(error, (MemoryError, jax.errors.JaxRuntimeError)):
        return
    if not path.is_dir():
        raise UserError(f"{path}: the checkpoint was deleted while it was read") from None
    raise DamagedCheckpoint(path, str(error).removeprefix(f"{path}/")) from error


def check_files(step: Path) -> None:
    """Checks the files of a checkpoint, which may be from elsewhere: TensorStore reads the data in parts, and
    orbax all other files whole. Raises as `check_run_file`."""
    for path in step.rglob("*"):  # which follows no links
        if path.is_symlink() or not path.is_dir():
            in_parts = path.parent.name == "d" or CHUNK.fullmatch(path.name)
            check_run_file(path, is_read=not in_parts)


def check_chunks(tree: Any) -> None:
    """Raises `ValueError` if an array in orbax's description of a checkpoint has larger chunks than itself:
    each chunk is unpacked whole, whatever is taken of it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: hasattr(leaf, "storage"))
    for path, leaf in leaves:
        chunks = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
        if math.prod(chunks) > (most := math.prod(max(1, size) for size in leaf.shape)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(f"{name} has chunks of {math.prod(chunks):,} elements, and {most:,} itself")
