"""Objectives, one file each, by the name of the key `experiment`."""

import importlib
from collections.abc import Mapping
from typing import Any

from transformer.errors import UserError
from transformer.freeze import suggest

EXPERIMENTS = {
    "language_modeling": "experiments.language_modeling:LanguageModeling",
}
"""Name -> module and class; a module is imported when a run asks for it, and not before."""


def find_experiment(values: Mapping[str, Any]) -> Any:
    """The class that the key `experiment` of a config names.

    Raises:
      UserError: there is no such key, or no experiment of that name.
    """
    name = values.get("experiment")
    if name not in EXPERIMENTS:
        raise UserError(f"config.experiment: {name!r} is no experiment; {suggest(name, EXPERIMENTS)}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
