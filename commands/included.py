"""The file of --include, which may add members to families, in this program and in those that it starts."""

import runpy
import shlex
from pathlib import Path

from transformer.errors import UserError

INCLUDED: list[str] = []
"""The flag, for the programs that this one starts."""


def shell(*arguments: str) -> str:
    """A command that is suggested, as one writes it in a shell."""
    return shlex.join(["python", "launch.py", *INCLUDED, *arguments])


def include(name: str) -> None:
    """Runs the file.

    Raises:
      UserError: no such file, or it fails.
    """
    from commands.opening import why_it_failed

    if not Path(name).is_file():
        raise UserError(f"--include: there is no file {name!r}")
    INCLUDED[:] = [f"--include={name}"]
    try:
        runpy.run_path(name)
    except Exception as error:
        raise UserError(why_it_failed(name, error)) from None
