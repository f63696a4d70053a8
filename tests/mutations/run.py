"""Runs of pytest in processes that start with the slow imports done: twice as fast as new interpreters."""

import multiprocessing
import os
import sys
from pathlib import Path

LIMIT = 900
"""Seconds until a run of tests counts as failed: a mutation may make a loop endless."""

PASSED, FAILED, NONE_COLLECTED = 0, 1, 5
"""Exit codes of pytest."""

PRELOADED = [
    "jax.numpy",
    "flax.linen",
    "optax",
    "orbax.checkpoint",
    "grain",
    "hypothesis",
    "matplotlib.figure",
]
"""Imports of every test, none of which is this repository's."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


def run_tests(folder: Path, tests: tuple[str, ...], marks: str) -> int:
    """The exit code of pytest in `folder`; `FAILED` if it takes too long."""
    process = _context.Process(target=_pytest, args=(str(folder), tests, marks))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
        return FAILED
    return int(process.exitcode or 0)


def _pytest(folder: str, tests: tuple[str, ...], marks: str) -> None:
    os.chdir(folder)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    # What was imported of the repository itself, and where, is forgotten: the copy has its own.
    root = str(Path(__file__).parents[2])
    sys.path[:] = [path for path in sys.path if path not in ("", root)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "transformer")]:
        del sys.modules[name]
    # A mutated file and the original may have the same size and time, by which bytecode is recognised.
    sys.dont_write_bytecode = True
    import pytest

    os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", marks, *tests]))
