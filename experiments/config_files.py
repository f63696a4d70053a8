"""Config files, and what the command line changes in them: plain nested dictionaries, not yet checked."""

import ast
import re
import runpy
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer.errors import UserError

ConfigSource = str | Mapping[str, Any]
"""A config file, "file.py" or "file.py:preset", or the values themselves: a `ConfigDict`, say."""


def read_config(argument: ConfigSource, overrides: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    """The values of a config, plain and nested.

    Raises:
      UserError: there is no such file or preset, or the file fails.
    """
    if not isinstance(argument, str):
        values = {key: _plain(value) for key, value in argument.items()}
        override(values, overrides)
        return values
    path, _, preset = argument.partition(":")
    if not Path(path).is_file():
        raise UserError(f"--config: there is no file {path!r}; configs/lm.py is one to begin with")
    try:
        config = runpy.run_path(path)["get_config"](*([preset] if preset else []))
        values = config.to_dict()
    except ValueError as error:
        raise UserError(f"{path}: {_line(error)}") from None
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path
        ]
        where = f", line {lines[-1]}" if lines else ""
        raise UserError(f"{path}{where}: {type(error).__name__}: {_line(error)}") from None
    override(values, overrides)
    return values


def override(values: dict[str, Any], overrides: Iterable[tuple[str, str]]) -> None:
    """Sets each key, "model.num_layers", to the value that its text means where it stands: a text stays a
    text, of a list of texts a single one is one, and anything else is read as Python writes it. Unknown keys
    are for `freeze` to report."""
    for key, text in overrides:
        *groups, name = key.split(".")
        group = values
        for part in groups:
            group = group.setdefault(part, {})
            if not isinstance(group, dict):
                raise UserError(f"config.{key}: {part!r} is a single value; it has no keys")
        group[name] = _parse(text, group.get(name))


def of_decoding(values: dict[str, Any], flags: Mapping[str, str | list[str]]) -> list[tuple[str, str]]:
    """The keys that flags of decoding, {"temperature": "0.5"}, mean in a run with these values: those of its
    group `sample`, or `generate`. In a text that stops, backslashes are as answers are written.

    Raises:
      UserError: the run writes no text.
    """
    group = next((group for group in ("sample", "generate") if group in values), "")
    keys = []
    for name, value in flags.items():
        if not group:
            kind = values.get("experiment")
            raise UserError(f"--{name}: this is a run of {kind}, which writes no text; leave it out")
        text = value if isinstance(value, str) else repr([_ESCAPE.sub(_unescape, stop) for stop in value])
        keys.append((f"{group}.{name}", text))
    return keys


_ESCAPE = re.compile(r"\\([nrt\\])")


def _unescape(found: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}[found[1]]


def _parse(text: str, default: Any) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, list):
        value = _parse(text, None)
        return value if isinstance(value, (list, tuple)) else [text]
    if text in ("true", "false"):
        return text == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    whole = isinstance(default, int) and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _plain(value: Any) -> Any:
    """A copy, of a `ConfigDict` too, whose groups are dictionaries."""
    return {key: _plain(each) for key, each in value.items()} if hasattr(value, "items") else value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
