"""What can be done with a run: one file for each command, and the folder and config files that they share.

The module of a command has a docstring, which is its help, `add_flags(parser)`, and `run(flags, overrides)`,
which returns the exit code. It imports JAX inside its functions: flags are checked without waiting for that.
"""

import argparse
import importlib
import os
from typing import Any

COMMANDS = {
    "train": "commands.train",
    "evaluate": "commands.evaluate",
    "predict": "commands.predict",
    "score": "commands.score",
    "analyze": "commands.analyze",
    "config": "commands.config",
}
"""The value of --mode -> module; a module is imported when it is asked for, and not before."""


def find_command(mode: str) -> Any:
    """The module of a command."""
    return importlib.import_module(COMMANDS[mode])


def text(value: str) -> str:
    """The type of flags whose values are text; those of files may be any bytes, as file names may."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{os.fsencode(value)!r} is not UTF-8") from None
    return value


def add_step(parser: argparse.ArgumentParser) -> None:
    """Adds --step, which chooses a checkpoint."""

    def step(value: str) -> int | str:
        if value in ("best", "latest") or value.isdecimal():
            return int(value) if value.isdecimal() else value
        raise argparse.ArgumentTypeError(f"{value!r}; expected a number, best or latest")

    what = "which checkpoint: a step, best or latest (the best, where it is kept)"
    parser.add_argument("--step", type=step, help=what)


def add_texts(parser: argparse.ArgumentParser, prompt: str) -> None:
    """Adds --prompt, --input and --output: texts to read, and where to write what is said of them."""
    parser.add_argument("--prompt", type=text, help=prompt)
    parser.add_argument("--input", help="a file of such texts, one a line (standard input)")
    parser.add_argument("--output", help="a file for the answers (standard output)")
