"""Errors in a user's own module: the last line of it that ran, and where the whole traceback is."""

import os
import sysconfig
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LIBRARY = (
    *(ROOT / name for name in ("commands", "experiments", "transformer", "tests", "benchmarks", "launch.py")),
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Where code is that is not the user's: this library, Python's and the installed packages."""


def last_own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame of an error in a file of the user, a module or a config file; None if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_file() and not any(path.is_relative_to(place) for place in LIBRARY):
            return frame
    return None


def explain(error: BaseException, frame: traceback.FrameSummary) -> str:
    """The lines to print: the file, the line and the error, then the code, then a new file with the whole
    traceback; the traceback alone if that file cannot be written."""
    whole = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(whole)
    except OSError:
        return whole.rstrip()
    said, place = " ".join(str(error).split()), frame.filename.removeprefix(f"{os.getcwd()}{os.sep}")
    return (
        f"error: {place}, line {frame.lineno}, in {frame.name}: "
        f"{type(error).__name__}: {said}\n    {frame.line}\nThe whole traceback is in {name}"
    )
