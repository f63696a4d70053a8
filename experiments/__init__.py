"""Objectives, one file each, by the name of the key `experiment`."""

import importlib
import os
from typing import Any

from transformer.errors import UserError
from transformer.freeze import suggest

EXPERIMENTS = {
    "language_modeling": "experiments.language_modeling:LanguageModeling",
}
"""Name -> module and class; a module is imported when a run asks for it, and not before."""


def find_experiment(name: str | None) -> Any:
    """The class of an experiment.

    Raises:
      UserError: there is none of that name.
    """
    if name not in EXPERIMENTS:
        raise UserError(f"config.experiment: {name!r} is no experiment; {suggest(name, EXPERIMENTS)}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def load(workdir: str | os.PathLike) -> tuple[Any, Any]:
    """The run that a folder holds, and its trained parameters: `run.experiment` has the model and more.

    Raises:
      UserError: the folder holds no run, or one without checkpoints.
    """
    from experiments import modes

    run = modes.reopen_run(workdir)
    return run, run.restore_params(modes.which(run))
