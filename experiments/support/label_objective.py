"""`LabelObjective`, the base class of objectives on examples with one label each: texts, images."""

from abc import abstractmethod

import jax

from experiments.base import Experiment
from transformer.evaluation.classifier_scores import classification_evaluator
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator
from transformer.training.losses.label_losses import LabelLoss
from transformer.training.metrics import Sum


class LabelObjective(Experiment):
    """An objective on examples with one label each; `label_loss` is a `LabelLoss`."""

    label_loss: LabelLoss

    @abstractmethod
    def logits(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> jax.Array:
        """The logits of each example of a batch over the classes, on the last axis."""

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, -log p(label) in nats, with label smoothing in training only, and `accuracy`."""
        return self.label_loss.terms(self.logits(params, batch, rng, train), batch, train)

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The sum of the examples' weights in the loss."""
        return self.label_loss.weigh(batch)

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Loss, accuracy, F1 and calibration error of a split."""
        evaluator = classification_evaluator(self, split, put)
        if split == "validation":
            self._validation = evaluator  # for plots and `result_lines`
        return {"eval": evaluator, **self.other_evaluators(put, split)}

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The accuracy, and that of always predicting the most frequent label."""
        return [self._validation.accuracy_line()]
