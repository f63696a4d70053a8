"""Training and loading from a notebook, with the settings that `launch.py` makes."""

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
    """Keeps compiled programs, and malloc's memory: once, and best before JAX has computed anything."""
    process.keep_programs()
    process.keep_memory()


def train(
    config: Mapping[str, Any] | str, workdir: str | os.PathLike, hooks: Sequence[Hook] = ()
) -> tuple[Run, Params]:
    """Trains in a folder, or goes on there, as `launch.py` does; gives the run and its parameters as `load`.

    `config` is a `ConfigDict`, as `get_config` of a config file gives it, with keys changed, or a file's
    name. `hooks` are callbacks of your own (CONTRIBUTING.md has one). Interrupting the kernel saves; the same
    call goes on.

    Raises:
      UserError: as one line at a terminal.
    """
    settle()
    command.train(os.fspath(workdir), config=config, hooks=hooks)
    return load(workdir)


def load(workdir: str | os.PathLike) -> tuple[Run, Params]:
    """The run that a folder holds, and its trained parameters; `run.experiment` has the model.

    Raises:
      UserError: it holds none, or one that has no checkpoint yet.
    """
    settle()
    return opening.load(workdir)
