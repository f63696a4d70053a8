"""Sweeps: lists of runs that differ in some config keys, and how to combine them.

A sweep is a list of settings, {config key: value}, one for each run. In a config file:

    def sweep():
        sizes = zipped(over("model.d_model", [128, 256]), over("model.d_ff", [512, 1024]))
        return product(sizes, over("optimizer.learning_rate", [1e-3, 3e-3]), over("seed", [0, 1, 2]))

Sweeps are lists, so that `a + b` has the runs of both.
"""

import functools
import hashlib
import itertools
import math
import re
from collections.abc import Iterable
from typing import Any

from transformer.errors import UserError

Setting = dict[str, Any]

NAME_LENGTH = 40
"""Characters of a key and of a value in the name of a run; of a longer one, or one with characters that a
folder's name should not have, it has the beginning and a hash."""


def over(key: str, values: Iterable[Any]) -> list[Setting]:
    """One run for each value of a key."""
    return [{key: value} for value in values]


def product(*sweeps: list[Setting]) -> list[Setting]:
    """Each run of the first sweep with each of the second, and so on; the last one varies fastest."""
    return [_merged(settings) for settings in itertools.product(*sweeps)]


def zipped(*sweeps: list[Setting]) -> list[Setting]:
    """The first run of each sweep together, the second of each, and so on.

    Raises:
      UserError: they do not have the same number of runs.
    """
    if len({len(sweep) for sweep in sweeps}) > 1:
        listed = " and ".join(str(len(sweep)) for sweep in sweeps)
        raise UserError(f"zipped: the sweeps have {listed} runs; expected the same number")
    return [_merged(settings) for settings in zip(*sweeps, strict=True)]


def _merged(settings: Iterable[Setting]) -> Setting:
    def merge(a: Setting, b: Setting) -> Setting:
        if twice := a.keys() & b.keys():
            raise UserError(f"{sorted(twice)[0]}: it is in two of the sweeps that are combined")
        return a | b

    return functools.reduce(merge, settings, {})


def read_sweep(text: str) -> list[Setting]:
    """The sweep in "KEY=VALUE,VALUE", or in "KEY,KEY=VALUE:VALUE,VALUE:VALUE", where keys change together.
    Commas in brackets or quotes belong to a value.

    Raises:
      UserError: another form.
    """
    names, equals, listed = text.partition("=")
    keys, values = names.split(","), split(listed, ",")
    if not equals or not all(keys) or not all(values):
        raise UserError(f"--sweep: {text!r}; expected KEY=VALUE,VALUE or KEY,KEY=VALUE:VALUE,VALUE:VALUE")
    if len(keys) == 1:
        return over(keys[0], values)
    rows = [split(value, ":") for value in values]
    for value, row in zip(values, rows, strict=True):
        if len(row) != len(keys):
            raise UserError(f"--sweep: {value!r} has {len(row)} values for the {len(keys)} keys {names}")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def as_overrides(setting: Setting) -> list[tuple[str, str]]:
    """The setting as on the command line: keys and values as text, of NumPy's numbers as of Python's."""
    plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in setting.items()}
    return [(key, value if isinstance(value, str) else repr(value)) for key, value in plain.items()]


def names(settings: Iterable[Setting]) -> list[str]:
    """A short name for each run, also as a folder: "learning_rate=0.001,seed=0", with `shortened` keys.

    Raises:
      UserError: two runs have the same values.
    """
    settings = [dict(as_overrides(setting)) for setting in settings]
    keys = dict.fromkeys(key for setting in settings for key in setting)
    short = dict(zip(keys, map(_in_a_name, shortened(keys)), strict=True))
    unique: list[str] = []
    for setting in settings:
        name = ",".join(f"{short[key]}={_shown(value)}" for key, value in setting.items())
        if len(name) > 200:  # file systems take 255 bytes
            name = f"{name[:180]}-{_digest(name)}"
        if name in unique:
            raise UserError(f"--sweep: two runs have {name}")
        unique.append(name)
    return unique


def shortened(keys: Iterable[str]) -> list[str]:
    """The last part of each key, with the part before a number ("window.2"), or the whole key where two have
    the same; of a source of a mixture its whole name, which may have dots."""
    keys = list(keys)
    last = [_last_part(key) for key in keys]
    return [key if last.count(part) > 1 else part for key, part in zip(keys, last, strict=True)]


def _last_part(key: str) -> str:
    if source := key.partition("data.sources.")[2]:
        return source
    before, _, part = key.rpartition(".")
    return f"{_last_part(before)}.{part}" if before and part.isdecimal() else part


def _shown(value: str) -> str:
    """A value as in a file's name; equal numbers are written the same way."""
    try:
        number = float(value)
    except ValueError:
        pass
    else:
        if math.isfinite(number):
            exact = int(value) if re.fullmatch(r"[+-]?[0-9]+", value) else number
            whole = number.is_integer() and abs(number) < 2**53
            value = repr(int(number) if whole else exact)
    return _in_a_name(value)


def _in_a_name(text: str) -> str:
    safe = re.sub(r"[^\w.+-]+", "-", text)
    return safe if safe == text and len(safe) <= NAME_LENGTH else f"{safe[: NAME_LENGTH - 8]}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
