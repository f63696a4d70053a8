"""Evaluation on further data sets: `evaluate.sets`."""

from typing import TYPE_CHECKING

from transformer.errors import UserError
from transformer.training.hooks import Evaluator

if TYPE_CHECKING:
    from transformer.training.run import Run


def evaluators_of_sets(run: "Run", split: str) -> dict[str, Evaluator]:
    """The evaluators of a split of each set, by prefixes: "wiki" instead of "eval", and "wiki/generate"
    instead of "generate".

    Raises:
      UserError: a set cannot be read; its key is named.
    """
    evaluators = {}
    for name, source in run.config.evaluate.sets.items():
        try:
            there = run.experiment.evaluators(run.put, f"{split} of {source}")
        except UserError as error:
            raise UserError(f"evaluate.sets.{name}: {error}") from error.__cause__
        for prefix, evaluator in there.items():
            evaluators[name if prefix == "eval" else f"{name}/{prefix}"] = evaluator
    return evaluators
