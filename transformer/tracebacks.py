"""Errors in a user's own files: a config file, a file of --include, a module that they import."""

import os
import re
import sysconfig
import tempfile
import traceback
from pathlib import Path

from transformer import ROOT

LIBRARY = (
    *(
        ROOT / name
        for name in ("benchmarks", "commands", "experiments", "launch.py", "tests", "transformer", "workdir")
    ),
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")),
)
"""The code of this library and of Python."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders of installed packages."""


def is_users(path: Path) -> bool:
    """Whether a file of code is the user's: not of this library, of Python or of an installed package."""
    path = path.resolve()
    is_library = any(path.is_relative_to(place) for place in LIBRARY)
    return path.is_file() and INSTALLED.isdisjoint(path.parts) and not is_library


def last_own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame of an error in a file of the user; None if there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if is_users(Path(frame.filename))), None)


def explain(error: BaseException, frame: traceback.FrameSummary) -> str:
    """The lines to print: the file, the line and the error; the code; the name of a new file with the whole
    traceback. If that file cannot be written, the traceback alone."""
    whole = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(whole)
    except OSError:
        return whole.rstrip()
    message, place = " ".join(str(error).split()), frame.filename.removeprefix(f"{os.getcwd()}{os.sep}")
    return (
        f"error: {place}, line {frame.lineno}, in {frame.name}: "
        f"{type(error).__name__}: {message}\n    {frame.line}\nThe whole traceback is in {name}"
    )


def why_it_failed(path: str, error: Exception) -> str:
    """An error in a config file, in one line, with its line number."""
    if path.endswith(".json"):
        return f"--config: {path} is not a program; --workdir resumes a run, --mode=fork changes its keys"
    message = " ".join(str(error).split())
    # For an unknown key ml_collections lists all others with their values before its suggestion.
    message = re.sub(r" and cannot be added .*(Did you mean)", r". \1", message)
    if isinstance(error, ValueError):
        return f"{path}: {message}"
    if isinstance(error, SyntaxError):
        return f"{path}, line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    return f"{path}{where}: {type(error).__name__}: {message}"
