"""Where commands write: new folders, which are there whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer.errors import UserError


def check_new(flag: str, place: Path) -> None:
    """Raises `UserError` if something is there already, except an empty folder."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{flag}: {place} is there already; choose a new folder")


@contextlib.contextmanager
def new_folder(flag: str, place: Path) -> Iterator[Path]:
    """The path for a new folder, which is renamed to `place` at the end. Until then it is in a folder that
    only this process has, beside `place` or the first parent that is not there; after an error nothing is.

    Raises:
      UserError: it cannot be made there, or something is there by now.
    """
    whole = Path(os.path.realpath(place))
    near = next(each for each in whole.parents if os.path.lexists(each))
    name = whole.relative_to(near).parts[0]
    try:
        own = tempfile.TemporaryDirectory(prefix=f"{name}.part-", dir=near, ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(f"{flag}: {place} cannot be made ({error.strerror})") from None
    with own:
        made = Path(own.name) / "new"
        yield made
        rename(flag, made, whole)


def rename(flag: str, made: Path, place: Path) -> None:
    """Puts a folder in its place, with the parents of that.

    Raises:
      UserError: something is there by now, or it cannot be made.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(made, place)
    except OSError as error:
        raise UserError(f"{flag}: {place} cannot be made ({error.strerror})") from None
