"""Suggestions for flags and config keys that do not exist, made before JAX is imported."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from commands.support.key_names import key_names, may_be_key, nearest_keys
from transformer import ROOT
from transformer.errors import UserError, suggest
from workdir.included import adds_members

CHOICE = re.compile(r"(?P<flag>.*): invalid choice: (?P<value>.*) \(choose from (?P<choices>.*)\)")
"""argparse's message; before Python 3.12 the choices are in quotes."""


def of_choice(message: str) -> str:
    """argparse's error on a value that is not one of a flag's choices, with the most similar choice in place
    of all; other errors as they are."""
    if not (parts := CHOICE.fullmatch(message)):
        return message
    choices = [choice.strip("'") for choice in parts["choices"].split(", ")]
    return f"{parts['flag']}: {parts['value']}; {suggest(parts['value'].strip(chr(39)), choices)}"


def of_flag(argument: str, mode: str, takers: Mapping[str, Sequence[str]]) -> str:
    """The error on a flag that the command `mode` does not have; `takers` are the commands of each flag."""
    name, equals, value = argument.partition("=")
    bare = name.lstrip("-")
    if "." in name:  # of a config file, or a key
        key = argument.lstrip("-").removeprefix("config.")
        hint = f"config={key}" if name.partition(":")[0].endswith(".py") else f"config.{key}"
        return f"{argument}: no such flag; did you mean --{hint}?"
    is_last_part = any(key.endswith(f".{bare}") for key in key_names())
    if name in takers:
        *rest, last = takers[name]
        listed = f"{', '.join(rest)} and {last} take" if rest else f"{last} takes"
        keys = " or ".join(f"--config.{key}" for key in nearest_keys(bare)) if is_last_part else ""
        return f"{name}: only --mode={listed} it" + (f"; the key is {keys}" if keys else "")
    own = [flag for flag, commands in takers.items() if mode in commands]
    flags = [] if is_last_part else nearest_flag(bare, own) or nearest_flag(bare, takers)
    flags = flags or [f"--config.{key}{equals}{value}" for key in nearest_keys(bare)]
    hint = f"did you mean {' or '.join(flags)}?" if flags else f"expected one of {', '.join(own)}"
    return f"{argument}: no such flag; {hint}"


def nearest_flag(name: str, flags: Iterable[str]) -> list[str]:
    """The flag whose letters are most similar to `name`, if any are; dashes, which all have, do not count."""
    by_letters = {flag.lstrip("-"): flag for flag in flags}
    return [by_letters[letters] for letters in get_close_matches(name, by_letters, n=1, cutoff=0.7)]


def check_keys(overrides: Iterable[tuple[str, str]], config: str) -> None:
    """Checks config keys given as flags against those of all experiments, unless `config`, "file.py:preset",
    is a file of the user, which may bring an experiment of its own.

    Raises:
      UserError: no experiment has a key.
    """
    file = Path(config.partition(":")[0])
    if config and (not (ROOT / file).resolve().is_relative_to(ROOT / "configs") or adds_members(ROOT / file)):
        return
    for key, value in overrides:
        if not may_be_key(key):
            keys = [f"--config.{near}={value}" for near in nearest_keys(key)]
            hint = f"did you mean {' or '.join(keys)}?" if keys else "--config=FILE --help=all lists them"
            raise UserError(f"--config.{key}: unknown key; {hint}")
