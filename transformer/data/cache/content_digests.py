"""Digests of the data of a run, independent of their location, to compare when the run is resumed."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transformer.data.cache.disk_cache import build_once, digest, file_digest, load_values
from transformer.errors import UserError

LISTED_CHANGES = 4
"""The number of changes that an error lists."""


def contents_of(files: Sequence[Path], folder: Path) -> dict[str, list]:
    """Name -> [size, digest] of each file, with names relative to the common folder.

    Digests are cached in `folder`, of prepared data, until the size or time of a file changes. A file that
    was touched or copied has the same digest.
    """
    stats = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]

    def build(new: Path) -> None:
        bar = tqdm(files, "reading the data", unit=" files", delay=2, leave=False, dynamic_ncols=True)
        (new / "digests.json").write_text(json.dumps([_digest(file) for file in bar]))

    cached = build_once(folder / "contents" / digest(stats), build)
    digests = load_values(cached / "digests.json")
    common = os.path.commonpath([file.parent for file in files])
    return {
        os.path.relpath(file, common): [size, digest]
        for file, (_, size, _), digest in zip(files, stats, digests, strict=True)
    }


def changes(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> str:
    """The differences between the contents of sources, key -> name -> content, in one line; "" if there are
    none. A source of a single file may be renamed."""
    lines = []
    for key in {**before, **now}:
        old, new = before.get(key, {}), now.get(key, {})
        if len(old) == len(new) == 1 and [*old.values()] == [*new.values()]:
            continue
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                lines.append(f"data.{key}: {_change(name, old.get(name), new.get(name))}")
    more = f" and {len(lines) - LISTED_CHANGES} more" if len(lines) > LISTED_CHANGES else ""
    return ", ".join(lines[:LISTED_CHANGES]) + more


def _change(name: str, old: Any, new: Any) -> str:
    if old is None:
        return f"{name} is new" + (f" ({new[0]:,} bytes)" if isinstance(new, list) else "")
    if new is None:
        return f"{name} is gone" + (f" ({old[0]:,} bytes)" if isinstance(old, list) else "")
    if isinstance(old, list) and isinstance(new, list):
        same = old[0] == new[0]
        return f"{name} has other content" if same else f"{name} had {old[0]:,} bytes and has {new[0]:,}"
    return f"{name} was {old!r} and is {new!r}"


def _digest(file: Path) -> str:
    try:
        return file_digest(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
