"""Writes the report of a run again: report.html, one file with all that the folder has to show.

python launch.py --workdir=runs/lm --mode=report

Training writes it at its end; this adds what came later, such as evaluations.
"""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import place
from transformer.errors import UserError
from workdir.outputs import check_file

if TYPE_CHECKING:
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(alone=True)
    parser.add_argument("--output", type=place, help="another file for it (report.html in the run's folder)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Writes the file, and prints its path."""
    if keys := [key for key, _ in overrides]:
        raise UserError(f"--config.{keys[0]}: --mode=report changes no keys")
    from workdir.facts import write
    from workdir.opening import named, reopen_run
    from workdir.summary import measured

    check_file("--output", flags.output)
    folder = named(flags.workdir)
    folder.vet()
    opened = reopen_run(folder.path)
    lines: list[str] = []
    with contextlib.suppress(Exception):  # some are known only where the evaluation was made
        lines += measured(opened, folder, logged=True)
    print(write(opened, folder, lines, Path(flags.output) if flags.output else folder.page))
    return 0
