"""Where commands write: what is checked before anything is computed, and new folders, which are there whole
or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer.errors import UserError

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of pictures."""


def check_file(flag: str, target: str | None) -> None:
    """Raises `UserError` if a file is asked for in a folder that is not there or cannot be written, or in
    place of a folder."""
    if not target:
        return
    if not (folder := Path(target).parent).is_dir():
        raise UserError(f"{flag}: there is no folder {str(folder)!r}")
    if Path(target).is_dir():
        raise UserError(f"{flag}: {target} is a folder; expected a file")
    if Path(target).is_file() or not Path(target).exists():  # not a pipe or /dev/null
        _check_writable(flag, folder)


def check_picture(flag: str, target: str | None) -> None:
    """Raises `UserError` if a picture is asked for under a name of no such kind, or as `check_file`."""
    if target is not None and not target.endswith(PICTURES):
        raise UserError(f"{flag}: {target}; expected a name that ends in {', '.join(PICTURES)}")
    check_file(flag, target)


def check_folder(flag: str, target: str | None) -> None:
    """Raises `UserError` if a folder is asked for at or below a file, or where it cannot be written."""
    if not target:
        return
    if not (near := nearest(Path(target).absolute())).is_dir():
        raise UserError(f"{flag}: {near} is a file; expected a folder")
    _check_writable(flag, near)


def _check_writable(flag: str, folder: Path) -> None:
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{flag}: {folder} cannot be written ({error.strerror})") from None


def make_folder(path: Path) -> None:
    """Makes the folder of --workdir for the runs of a command, unless it is there.

    Raises:
      UserError: it is a file, or cannot be written.
    """
    from transformer.run_folder import RunFolder
    from workdir.lock import holding

    if (folder := RunFolder(path).path).is_file():
        raise UserError(f"--workdir: {folder} is a file")
    with holding(folder / f"{os.getpid()}.lock"):  # as training does in the folder of a run
        pass


def nearest(path: Path) -> Path:
    """The path itself, or the first folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


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
    near = nearest(whole.parent)
    name = whole.relative_to(near).parts[0]
    try:
        own = tempfile.TemporaryDirectory(prefix=f"{name}.part-", dir=near, ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(f"{flag}: {place} cannot be made ({error.strerror})") from None
    with own:
        folder = Path(own.name) / "new"
        yield folder
        rename(flag, folder, whole)


def rename(flag: str, folder: Path, place: Path) -> None:
    """Puts a folder in its place, with the parents of that.

    Raises:
      UserError: something is there by now, or it cannot be made.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, place)
    except OSError as error:
        raise UserError(f"{flag}: {place} cannot be made ({error.strerror})") from None
