"""Training and loading from a notebook, with the process settings of `launch.py`."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from commands import opening
from commands import train as command
from transformer import process
from transformer.training.experiment import Params
from transformer.training.hooks import Hook
from transformer.training.run import Run


@functools.cache
def settle() -> None:
    """Sets the compilation cache and malloc, once; call it before JAX computes anything."""
    process.keep_programs()
    process.keep_memory()


def train(
    config: Mapping[str, Any] | str, workdir: str | os.PathLike, hooks: Sequence[Hook] = ()
) -> tuple[Run, Params]:
    """Trains in a folder, or resumes there, as `launch.py` does; returns the run and its parameters as
    `load`.

    `config` is a `ConfigDict` from `get_config` of a config file, possibly with changed keys, or a file name.
    `hooks` are your own callbacks (see CONTRIBUTING.md). Interrupting the kernel saves a checkpoint; the same
    call resumes.

    Raises:
      UserError: where `launch.py` prints an error.
    """
    settle()
    command.train(os.fspath(workdir), config=config, hooks=hooks)
    return load(workdir)


def load(workdir: str | os.PathLike) -> tuple[Run, Params]:
    """The run in a folder and its trained parameters; `run.experiment` has the model.

    Raises:
      UserError: the folder has no run, or the run has no checkpoint.
    """
    settle()
    return opening.load(workdir)
