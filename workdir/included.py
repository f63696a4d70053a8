"""The file of --include, which may add members to families, in this program and in those that it starts."""

import re
import runpy
from pathlib import Path

from transformer.errors import UserError
from transformer.tracebacks import why_it_failed

INCLUDED: list[str] = []
"""The flag --include, for commands that are suggested and programs that this one starts."""

ADDS = re.compile(r"^[A-Z_]+\[.+\] = ", re.MULTILINE)
"""A line that adds a member to a family, as CONTRIBUTING.md shows."""


def include(name: str) -> None:
    """Runs the file.

    Raises:
      UserError: no such file, or it fails.
    """
    if not Path(name).is_file():
        raise UserError(f"--include: there is no file {name!r}")
    try:
        runpy.run_path(name)
    except Exception as error:
        raise UserError(why_it_failed(name, error)) from None
    INCLUDED[:] = [f"--include={name}"]


def suggest_including(config: object) -> None:
    """Adds --include to the commands that are suggested from here on, if `config` is a config file that adds
    members, "file.py:preset": commands on the run's folder do not run it."""
    path = Path(config.partition(":")[0]) if isinstance(config, str) else None
    if path and not INCLUDED and adds_members(path):
        INCLUDED.append(f"--include={path}")


def adds_members(path: Path) -> bool:
    """Whether a config file is there that adds members to families."""
    return path.is_file() and bool(ADDS.search(path.read_text(encoding="utf-8")))
