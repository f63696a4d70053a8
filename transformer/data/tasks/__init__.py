"""Tasks: rows of integers that a rule generates, by the value of `data.source`, one file each."""

from transformer.data.tasks.base import Task
from transformer.data.tasks.digit_addition import DigitAddition
from transformer.data.tasks.modular_addition import ModularAddition
from transformer.data.tasks.recall import Recall
from transformer.data.tasks.repeats import Repeats
from transformer.data.tasks.selective_copying import SelectiveCopying
from transformer.data.tasks.word_problem import WordProblem

TASKS: dict[str, type[Task]] = {
    "modular_addition": ModularAddition,
    "repeats": Repeats,
    "recall": Recall,
    "word_problem": WordProblem,
    "selective_copying": SelectiveCopying,
    "digit_addition": DigitAddition,
}
"""Name -> class; the arguments of its constructor are the keys of `data.arguments`."""

__all__ = [
    "TASKS",
    "DigitAddition",
    "ModularAddition",
    "Recall",
    "Repeats",
    "SelectiveCopying",
    "Task",
    "WordProblem",
]
