"""Python files of the user: the file of --include, which may add members to families in this program and in
those that it starts, and the errors of such files."""

import re
import runpy
import traceback
from pathlib import Path

from commands import INCLUDED
from transformer.errors import UserError

ADDS = re.compile(r"^[A-Z_]+\[.+\] = ", re.MULTILINE)
"""A line that adds a member to a family, as CONTRIBUTING.md shows."""


def include(name: str) -> None:
    """Runs the file.

    Raises:
      UserError: no such file, or it fails.
    """
    if not Path(name).is_file():
        raise UserError(f"--include: there is no file {name!r}")
    INCLUDED[:] = [f"--include={name}"]
    try:
        runpy.run_path(name)
    except Exception as error:
        raise UserError(why_it_failed(name, error)) from None


def suggest_including(config: object) -> None:
    """Adds --include to the commands that are suggested from here on, if `config` is a config file that adds
    members, "file.py:preset": commands on the run's folder do not run it."""
    path = Path(config.partition(":")[0]) if isinstance(config, str) else None
    if path and not INCLUDED and adds_members(path):
        INCLUDED.append(f"--include={path}")


def adds_members(path: Path) -> bool:
    """Whether there is a config file that adds members to families."""
    return path.is_file() and bool(ADDS.search(path.read_text(encoding="utf-8")))


def why_it_failed(path: str, error: Exception) -> str:
    """An error in a config file, in one line, with its line number."""
    if path.endswith(".json"):
        return f"--config: {path} is no program; a run goes on with --workdir, with other keys by --mode=fork"
    said = " ".join(str(error).split())
    # For an unknown key ml_collections lists all others with their values before its suggestion.
    said = re.sub(r" and cannot be added .*(Did you mean)", r". \1", said)
    if isinstance(error, ValueError):
        return f"{path}: {said}"
    if isinstance(error, SyntaxError):
        return f"{path}, line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    return f"{path}{where}: {type(error).__name__}: {said}"
