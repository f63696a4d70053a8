"""Tasks: rows of integers that a rule generates, by the value of `data.source`, one file each."""

from transformer.data.tasks.base import Task
from transformer.data.tasks.modular_addition import ModularAddition
from transformer.data.tasks.repeats import Repeats

TASKS: dict[str, type[Task]] = {"modular_addition": ModularAddition, "repeats": Repeats}
"""Name -> class; the arguments of its constructor are the keys of `data.arguments`."""

__all__ = ["TASKS", "ModularAddition", "Repeats", "Task"]
