"""The overlap of training and validation records."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.cache.disk_cache import build_once, digest, load_array
from transformer.data.sources.base import Source
from transformer.errors import UserError

Hashed = tuple[np.ndarray, Callable[[int], str]]
"""A number (n,) for each record of a split, equal if a model is asked the same; and index -> place."""

BLANK = 0
"""The number of records of white space alone, which are not compared."""


def hashed(sources: Sequence[Source], folder: Path) -> Hashed:
    """The records of all sources, by their text but for white space at its ends; cached in `folder`."""
    numbers = [
        load_array(
            build_once(folder / "hashes" / digest(source.identity), functools.partial(_write, source))
            / "h.npy"
        )
        for source in sources
    ]
    starts = np.cumsum([0, *map(len, numbers)])

    def place(index: int) -> str:
        part = int(np.searchsorted(starts, index, side="right")) - 1
        return sources[part].place(index - int(starts[part]))

    return np.concatenate(numbers), place


def _write(source: Source, new: Path) -> None:
    hashes = (_hash(source, index) for index in range(len(source)))
    np.save(new / "h.npy", np.fromiter(hashes, np.uint64, len(source)))


def _hash(source: Source, index: int) -> int:
    state, blank = hashlib.blake2b(digest_size=8), True
    for piece in source.pieces(index):  # a document may be larger than memory
        state.update(text := piece.strip().encode("utf-8", "surrogatepass"))
        blank = blank and not text
    return BLANK if blank else int.from_bytes(state.digest())


def shared(data: Any) -> tuple[np.ndarray, Callable[[int], str]]:
    """Which validation records (n,) are also in training, and index -> place of one."""
    (train_m, _), (validation_n, place) = map(data.hashed, ("train", "validation"))
    return np.isin(validation_n, train_m) & (validation_n != BLANK), place


def overlap_lines(data: Any) -> list[str]:
    """A line on how many validation records are also in training."""
    return [_counted(shared(data)[0])]


def check_overlap(data: Any) -> None:
    """Checks that at most the share `overlap` of the validation records is also in training.

    Raises:
      UserError: it is more.
    """
    shared_n, place = shared(data)
    if shared_n.sum() > data.config.overlap * len(shared_n):
        first = f"the first at {place(int(shared_n.argmax()))}{_common(data.contents())}"
        remedy = "give other data, or set data.overlap to the share that may be (1: all)"
        raise UserError(f"data: {_counted(shared_n)}, {first}; {remedy}")


def _counted(shared_n: np.ndarray) -> str:
    return f"{shared_n.sum():,} of {len(shared_n):,} validation records are also in training"


def _common(contents: Mapping[str, Mapping[str, Any]]) -> str:
    """The files that training and validation both read."""
    of_training = [
        content for key, files in contents.items() if key != "validation_source" for content in files.values()
    ]
    files = contents.get("validation_source", {}).items()
    names = [name for name, content in files if content in of_training]
    return f" ({', '.join(names[:3])}: a file of both)" if names else ""
