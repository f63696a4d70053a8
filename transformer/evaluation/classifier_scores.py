"""Evaluation of classifiers: accuracy, macro F1, confusion matrix, calibration error."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.line_escapes import escape, in_a_line
from transformer.evaluation.batch_results import summed_terms
from transformer.evaluation.confusion import confusion_lines, macro_f1
from transformer.evaluation.statistics.bootstrap import RESAMPLES, interval, interval_text
from transformer.evaluation.terms_by_row import replicated
from transformer.training.experiment import Batch, Batches, Params, Put
from transformer.training.metrics import Sum
from transformer.training.step import in_microbatches

BINS = 15
"""Equal bins of confidence in [0, 1] for the calibration error."""


def classification_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, Sum]:
    """The statistics of a batch, from logits (..., c) and labels (...) of weight 0 or 1, as sums.

    `loss`: -log p(label), in nats; `accuracy`; `confusion`: (c, c), the count of each (label, prediction);
    `calibration`: (3, BINS), for each bin of confidence the number of predictions, the sum of their
    confidences and the number of correct ones.
    """
    classes = logits.shape[-1]
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(-1, classes)
    labels, weights = labels.reshape(-1), weights.reshape(-1)
    predicted = jnp.argmax(log_p, axis=-1)
    confidence = jnp.exp(jnp.max(log_p, axis=-1))
    right = (predicted == labels).astype(jnp.float32)
    nll = -jnp.take_along_axis(log_p, labels[:, None], axis=-1)[:, 0]
    bins = jnp.minimum((confidence * BINS).astype(jnp.int32), BINS - 1)
    in_bin = jax.nn.one_hot(bins, BINS) * weights[:, None]
    truth = jax.nn.one_hot(labels, classes) * weights[:, None]
    one = jnp.float32(1)
    return {
        "loss": Sum.of(nll, weights),
        "accuracy": Sum.of(right, weights),
        "confusion": Sum(truth.T @ jax.nn.one_hot(predicted, classes), one),
        "calibration": Sum(jnp.stack([jnp.ones_like(right), confidence, right]) @ in_bin, one),
    }


def window_sums(logits: jax.Array, texts: jax.Array, weights: jax.Array, num_texts: int) -> dict[str, Sum]:
    """For windows of texts, from logits (..., c) and the numbers of their texts (...): `probability`, for
    each text the sum of its windows' probabilities (n, c), and the number of its windows (n,). Those of
    weight 0 do not count."""
    p = jax.nn.softmax(logits.astype(jnp.float32)).reshape(-1, logits.shape[-1])
    texts, counts = texts.reshape(-1), (weights.reshape(-1) > 0).astype(jnp.float32)
    p_nc = jnp.zeros((num_texts, p.shape[-1])).at[texts].add(p * counts[:, None])
    counts_n = jnp.zeros(num_texts).at[texts].add(counts)
    return {"probability": Sum(replicated(p_nc), replicated(counts_n))}


def text_sums(sums: dict[str, Sum], label_n: np.ndarray, windows_n: np.ndarray) -> dict[str, Sum]:
    """`classification_sums` of texts by their mean probabilities, from `window_sums` over batches.

    `windows_n` are the numbers of windows of the texts. The weight of a text is the share of its windows that
    are in the batches: 1, or less if only some batches are evaluated.
    """
    p_nc, counts_n = sums["probability"].total, sums["probability"].weight
    logits_nc = log_probabilities(np.asarray(p_nc))  # a softmax of them divides by the number of windows
    shares_n = np.asarray(counts_n) / windows_n
    return classification_sums(jnp.asarray(logits_nc), jnp.asarray(label_n), jnp.asarray(shares_n))


def log_probabilities(p: np.ndarray) -> np.ndarray:
    """log p, finite also where p has underflowed to 0."""
    return np.log(np.maximum(p, np.finfo(np.float32).tiny))


def mean_logits(logits_wc: np.ndarray, counts_n: np.ndarray) -> np.ndarray:
    """The log of the mean probability (n, c) of n texts, of which the first has the first counts_n[0] of the
    windows, and so on."""
    p_wc, starts_n = _softmax(logits_wc.astype(np.float64)), np.cumsum(counts_n) - counts_n
    return log_probabilities(np.add.reduceat(p_wc, starts_n) / counts_n[:, None])


def calibration_error(calibration_3n: np.ndarray) -> float:
    """sum over bins of (share of predictions) |accuracy - mean confidence|.

    Source: Guo et al. 2017, "On calibration of modern neural networks", equation 3.
    """
    counts, confidence, right = calibration_3n
    return float(np.abs(right - confidence).sum() / max(counts.sum(), 1))


class ClassificationEvaluator:
    """Loss, accuracy, macro F1 and calibration error over one pass of `loader`.

    `step` is the compiled (params, batch) -> `classification_sums`, or other sums from which `finish`
    computes them after the pass. `last` keeps the matrices of the last pass for plots, {"confusion": ...,
    "calibration": ...}.
    """

    def __init__(
        self,
        step: Callable[[Params, Batch], dict[str, Sum]],
        loader: Batches,
        put: Put,
        batches: int = 0,
        labels: Sequence[str] = (),
        finish: Callable[[dict[str, Sum]], dict[str, Sum]] = lambda sums: sums,
    ) -> None:
        """`put` puts a batch onto the devices, and `batches` limits the pass (0: all). `labels` are the names
        of the classes."""
        self._step, self._loader, self._put, self._batches = step, loader, put, batches
        self._labels, self._finish = labels, finish
        self.last: dict[str, np.ndarray] = {}

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        return ["loss", "accuracy", "f1", "calibration_error"]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"loss": nats, "accuracy": ..., "f1": `macro_f1`, "calibration_error": ...}."""
        sums = self._finish(summed_terms(self._step, params, self._loader, self._put, self._batches))
        self.last = {name: np.asarray(sums[name].total) for name in ("confusion", "calibration")}
        return {
            "loss": float(sums["loss"].mean),
            "accuracy": float(sums["accuracy"].mean),
            "f1": macro_f1(self.last["confusion"]),
            "calibration_error": calibration_error(self.last["calibration"]),
        }

    def drawn(self, params: Params) -> tuple | None:
        """Confusion matrix, calibration and labels of the last pass, for a plot; None before the first."""
        return (self.last["confusion"], self.last["calibration"], self._labels) if self.last else None

    def accuracy_line(self) -> str:
        """The accuracy of the last pass, and that of always predicting the most frequent label."""
        confusion_cc = self.last["confusion"]
        counts_c, n = confusion_cc.sum(axis=1), confusion_cc.sum() or 1.0
        commonest = int(counts_c.argmax())
        always = f"always {self._labels[commonest]!r}: {counts_c[commonest] / n:.2%}"
        right, f1 = np.trace(confusion_cc) / n, macro_f1(confusion_cc)
        return f"validation accuracy {right:.2%} of {n:,.0f}, macro F1 {f1:.4f}; {always}"

    def describe(self) -> dict[str, str]:
        """The number of evaluated examples, bootstrap intervals of accuracy and F1, and the confusion matrix
        as text."""
        confusion_cc = self.last["confusion"]
        n = round(confusion_cc.sum())  # of texts of which some windows were evaluated, a part counts
        loader: Any = self._loader
        total = loader.rows.examples  # a row may have several texts, a text several rows
        description = {"measured": f"{n:,} of {max(n, total):,} examples"}
        if n > 1:
            # Resampling examples is the same as resampling the cells of the matrix that they are in.
            rng, cells = np.random.default_rng(0), np.flatnonzero(confusion_cc)
            share = confusion_cc.reshape(-1)[cells] / confusion_cc.sum()
            drawn = {"accuracy": np.zeros(RESAMPLES), "f1": np.zeros(RESAMPLES)}
            again_cc = np.zeros_like(confusion_cc)
            for sample in range(RESAMPLES):
                again_cc.reshape(-1)[cells] = rng.multinomial(n, share)
                drawn["accuracy"][sample] = np.trace(again_cc) / n
                drawn["f1"][sample] = macro_f1(again_cc)
            description |= {
                name: interval_text(interval(values), f"{n:,} examples") for name, values in drawn.items()
            }
        table = confusion_lines(confusion_cc.astype(np.int64), self._labels)
        return description | {"confusion": "\n".join(table)}


def classification_evaluator(experiment: Any, split: str, put: Put) -> ClassificationEvaluator:
    """The evaluator of a split for an experiment with `logits(params, batch, rng, train)` and `data.labels`.
    Probabilities are averaged over the windows of a text, if batches have `texts`. Rows are sorted by length
    or label, so they are shuffled if `train.evaluate_batches` limits them."""
    c = experiment.config
    loader = experiment.loader(split, shuffle=c.train.evaluate_batches > 0)

    def step(params: Params, batch: Batch) -> dict[str, Sum]:
        logits = experiment.logits(params, batch, jax.random.key(0), False)
        if "texts" in batch:
            return window_sums(logits, batch["texts"], batch["weights"], len(loader.rows.label_n))
        return classification_sums(logits, batch["labels"], batch["weights"])

    def finish(sums: dict[str, Sum]) -> dict[str, Sum]:
        if "probability" not in sums:
            return sums
        return text_sums(sums, loader.rows.label_n, loader.rows.windows_n)

    compiled = jax.jit(in_microbatches(step, c.parallel.microbatches))
    labels = experiment.data.labels
    return ClassificationEvaluator(compiled, loader, put, c.train.evaluate_batches, labels, finish)


def ranked_labels(logits_nc: np.ndarray, labels: Sequence[str]) -> list[list[str]]:
    """One line for each row of logits, tab-separated: the label, then every label with its probability,
    likeliest first."""
    names, lines = [*map(in_a_line, labels)], []
    for p_c in _softmax(logits_nc):
        order = np.argsort(-p_c, kind="stable")
        lines.append(["\t".join([names[order[0]], *(f"{names[i]}={p_c[i]:.4f}" for i in order)])])
    return lines


def prediction_table(
    examples: Iterable[tuple[list[str], int, np.ndarray]], columns: Sequence[str], labels: Sequence[str]
) -> Iterator[str]:
    """The lines of a tab-separated table: a header, then for each example (texts, label, logits) its texts,
    named by `columns`, its label, the predicted label, and the probability of each label. In texts a line
    break is \\n, a tab \\t and a backslash \\\\."""
    names = [escape(label) for label in labels]
    yield "\t".join([*columns, "label", "predicted", *(f"p({name})" for name in names)])
    for texts, label, logits_c in examples:
        (p_c,) = _softmax(logits_c[None])
        cells = [*map(escape, texts), names[label], names[int(p_c.argmax())]]
        yield "\t".join([*cells, *(f"{p:.6f}" for p in p_c)])


def _softmax(logits_nc: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits_nc - logits_nc.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
