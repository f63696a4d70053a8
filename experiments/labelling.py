"""What all objectives share that give examples one of several labels."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.objective import Objective
from experiments.pictures import save_picture
from transformer.data.escapes import escape
from transformer.errors import UserError
from transformer.evaluation.classification import ClassificationEvaluator, tally
from transformer.training.experiment import Batch, Evaluator, Params, Put
from transformer.training.hooks import Hook
from transformer.training.metrics import Sum
from transformer.training.state import State
from transformer.training.step import in_parts
from transformer.visualization.classification import draw_classification


@dataclass(frozen=True)
class LabelLossConfig:
    """How the loss of a classifier is formed; `configs/base/` says what each key means."""

    label_smoothing: float = 0.0
    balance: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing: {self.label_smoothing}; expected a share in [0, 1)")


class Labelling(Objective, ABC):
    """A model that gives logits over `data.labels`; the loss is -log p(label), in nats.

    A subclass has `logits`; a batch has `labels` and `weights` of the shape of the logits without their last
    axis.
    """

    sorts_rows = True
    heads: tuple[str, ...] = ("head", "pooler")

    @abstractmethod
    def logits(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> jax.Array:
        """Float32 logits, one row for each label of the batch."""

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, smoothed in training only, and `accuracy`, for each example by `weights`."""
        logits = self.logits(params, batch, rng, train)
        smoothing = self.config.loss.label_smoothing if train else 0.0
        log_p = jax.nn.log_softmax(logits)
        nll = -jnp.take_along_axis(log_p, batch["labels"][..., None], axis=-1)[..., 0]
        smoothed = (1 - smoothing) * nll - smoothing * log_p.mean(axis=-1)
        right = jnp.argmax(logits, axis=-1) == batch["labels"]
        weights = self._weights(batch)
        return {"loss": Sum.of(smoothed, weights), "accuracy": Sum.of(right, batch["weights"])}

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of examples, each counted as the loss counts it."""
        return {"loss": jnp.sum(self._weights(batch))}

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Of a split loss, accuracy, F1 and calibration error."""

        def step(params: Params, batch: Batch) -> dict[str, Sum]:
            logits = self.logits(params, batch, jax.random.key(0), False)
            return tally(logits, batch["labels"], batch["weights"])

        c = self.config
        limit, compiled = c.train.evaluate_batches, jax.jit(in_parts(step, c.parallel.microbatches))
        loader = self.held_out(split)
        evaluator = ClassificationEvaluator(compiled, loader, put, limit, self.data.labels)
        if split == "validation":
            self._evaluator = evaluator  # what pictures and the closing lines show
        return {"eval": evaluator} | super().evaluators(put, split)

    def hooks(self, workdir: Path) -> list[Hook]:
        """A picture of what the last evaluation found."""
        return [ConfusionPicture(self.config.train.sample_every, self, workdir)]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """The accuracy beside that of always answering with the commonest label."""
        matrix = self._evaluator.last["confusion"]
        commonest = int(matrix.sum(axis=1).argmax())
        always = matrix.sum(axis=1)[commonest] / max(matrix.sum(), 1)
        return [
            f"validation accuracy {measured['eval/accuracy']:.2%} of {int(matrix.sum()):,}, "
            f"macro F1 {measured['eval/f1']:.4f}; always {self.data.labels[commonest]!r}: {always:.2%}"
        ]

    @abstractmethod
    def examples(self, params: Params, split: str) -> Iterator[tuple[list[str], int, np.ndarray]]:
        """Of each example that is measured of a split what it is (under `columns`), the number of its label,
        and the logits (c,)."""

    columns: tuple[str, ...] = ("text",)

    def predictions(self, params: Params, split: str) -> Iterator[str]:
        """A table of every example of a split, with a header and tabs between: what it is, its label, the
        predicted one, and the probability of each. In texts a line break is \\n, a tab \\t, a backslash \\\\.
        """
        labels = [escape(label) for label in self.data.labels]
        yield "\t".join([*self.columns, "label", "predicted", *(f"p({label})" for label in labels)])
        for texts, label, logits_c in self.examples(params, split):
            (p_c,) = _softmax(logits_c[None])
            cells = [*map(escape, texts), labels[label], labels[int(p_c.argmax())]]
            yield "\t".join([*cells, *(f"{p:.6f}" for p in p_c)])

    def describe(self, logits_nc: np.ndarray) -> list[list[str]]:
        """One line for each row of logits: the label, then every label with its probability, likeliest
        first, tabs between."""
        lines = []
        for p_c in _softmax(logits_nc):
            order = np.argsort(-p_c, kind="stable")
            listed = [f"{self.data.labels[i]}={p_c[i]:.4f}" for i in order]
            lines.append(["\t".join([self.data.labels[order[0]], *listed])])
        return lines

    def _weights(self, batch: Batch) -> jax.Array:
        """1 for each example; with `loss.balance` n / (c n_label), so that all c labels weigh the same
        together in the n training examples."""
        if not self.config.loss.balance:
            return batch["weights"]
        return batch["weights"] * jnp.asarray(self._balance)[batch["labels"]]

    @functools.cached_property
    def _balance(self) -> np.ndarray:
        counts_c = np.maximum(self.data.label_counts("train"), 1)
        return (counts_c.sum() / (len(counts_c) * counts_c)).astype(np.float32)


def _softmax(logits_nc: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits_nc - logits_nc.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


class ConfusionPicture(Hook):
    """Draws confusion matrix and calibration of the evaluation before it: `workdir`/classes/<step>.png, and
    in TensorBoard."""

    def __init__(self, every: int, experiment: Labelling, workdir: Path):
        super().__init__(every)
        self.experiment, self.workdir = experiment, workdir

    def __call__(self, step: int, state: State, metrics: Any) -> None:
        """Draws on the first process."""
        last = self.experiment._evaluator.last
        if last and jax.process_index() == 0:
            labels = self.experiment.data.labels

            def draw(path: Path) -> None:
                draw_classification(last["confusion"], last["calibration"], labels, path)

            save_picture("classes", draw, step, self.workdir, self.experiment.config.train)
