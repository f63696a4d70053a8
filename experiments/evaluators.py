"""Further evaluators: what a run measures besides its own, where the key `evaluate.also` names it."""

import gzip
import lzma
from collections.abc import Callable
from typing import Any

from transformer.errors import UserError
from transformer.freeze import suggest
from transformer.training.experiment import Evaluator, Params, Put


class Compressors:
    """Bits per byte of two compressors on the text of a split, to compare a model of text with."""

    def __init__(self, experiment: Any, put: Put, split: str) -> None:
        """The experiment's data have `text`."""
        if not hasattr(experiment.data, "text"):
            raise UserError(f"evaluate.also: compressors: {experiment.config.experiment} has no plain text")
        self._experiment, self._split = experiment, split

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        return ["gzip", "xz"]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"gzip": ..., "xz": ...}, each at its best."""
        text = "".join(self._experiment.data.text(self._split)).encode()
        sizes = {
            "gzip": len(gzip.compress(text, 9)),
            "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
        }
        return {name: 8 * size / max(len(text), 1) for name, size in sizes.items()}


EVALUATORS: dict[str, Callable[[Any, Put, str], Evaluator]] = {
    "compressors": Compressors,
}
"""By the name under which results are logged, called with the experiment, `put` and the split."""


def find_evaluator(name: str) -> Callable[[Any, Put, str], Evaluator]:
    """The factory of an evaluator.

    Raises:
      UserError: there is none of that name.
    """
    if name not in EVALUATORS:
        raise UserError(f"evaluate.also: {name!r} is no evaluator; {suggest(name, EVALUATORS)}")
    return EVALUATORS[name]
