"""The commands of `launch.py`, one file each; what several share is in sub-packages.

The module of a command has a docstring (the help text), `add_flags(parser)`, and `run(flags, overrides)`,
which returns the exit code. `add_flags` may set the defaults `missing`, the message without
--workdir and --config ("" if the command needs neither), `suffix`, of its default folder, and `alone`, that
several processes cannot run it together. The module imports JAX inside its functions, so that flags are
checked without waiting for it.
"""

import argparse
import importlib
import os
from typing import Any

from transformer.run_folder import HERE, REMOTE

COMMANDS = {
    "train": "commands.train",
    "fork": "commands.fork",
    "evaluate": "commands.evaluate",
    "predict": "commands.predict",
    "score": "commands.score",
    "embed": "commands.embed",
    "analyze": "commands.analyze",
    "inspect": "commands.inspect",
    "config": "commands.config",
    "plan": "commands.plan",
    "sweep": "commands.sweep",
    "table": "commands.table",
    "compare": "commands.compare",
    "report": "commands.report",
    "batch": "commands.batch",
    "replay": "commands.replay",
    "scaling": "commands.scaling",
    "coordinates": "commands.coordinates",
    "import": "commands.import_",
    "export": "commands.export",
    "twin": "commands.twin",
    "verify": "commands.verify",
}
"""Value of --mode -> module; a module is imported only when it is needed."""

MODES = ", ".join(COMMANDS)

NO_WORKDIR = "--workdir is required"
NO_CONFIG = "--config is required, such as configs/lm.py"


def find_command(mode: str) -> Any:
    """The module of a command."""
    return importlib.import_module(COMMANDS[mode])


def text(value: str) -> str:
    """The type of text flags: raises if the value is not UTF-8. (File names may be any bytes.)"""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{os.fsencode(value)!r} is not UTF-8") from None
    return value


def place(value: str) -> str:
    """The type of flags that name files or folders: raises if the value is an address of another system."""
    if REMOTE.search(value):
        raise argparse.ArgumentTypeError(f"{value} is on another system; expected {HERE}")
    return value


def add_step(
    parser: argparse.ArgumentParser, flag: str = "--step", default: str = "best if the run keeps one"
) -> None:
    """Adds a flag that chooses a checkpoint; without it, it is the `default`."""

    def step(value: str) -> int | str:
        if value in ("best", "latest") or value.isdecimal():
            return int(value) if value.isdecimal() else value
        raise argparse.ArgumentTypeError(f"{value!r}; expected a number, best or latest")

    parser.add_argument(flag, type=step, help=f"the checkpoint: a step, best or latest ({default})")


def add_texts(parser: argparse.ArgumentParser, prompt: str) -> None:
    """Adds --prompt, --input and --output."""
    parser.add_argument("--prompt", type=text, help=prompt)
    parser.add_argument("--input", type=place, help="a file of such texts, one per line (standard input)")
    parser.add_argument("--output", type=place, help="a file for the answers (standard output)")
