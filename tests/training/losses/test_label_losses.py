"""The loss of classifiers."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training.losses.label_losses import LabelLoss, LabelLossConfig


class Given(LabelLoss):
    """The loss of logits that come with the batch; of the training examples `counts` have each label."""

    def __init__(self, counts=(), balanced=False, label_smoothing=0.0):
        data = types.SimpleNamespace(label_counts={"train": np.array(counts)}.__getitem__)
        super().__init__(LabelLossConfig(label_smoothing, balanced), data)

    def total(self, batch, train=True) -> float:
        return float(self.terms(batch["logits"], batch, train)["loss"].total)

    def mean(self, batch, train=True) -> float:
        """What the step makes of the loss: the sum of the term over the weight of the whole batch."""
        return self.total(batch, train) / float(self.weigh(batch)["loss"])


def batch_of(rng, labels, padding=3):
    labels = np.array(labels)
    logits = rng.normal(size=(len(labels) + padding, 3)).astype(np.float32) * 2
    weights = np.arange(len(logits)) < len(labels)
    batch = {"logits": logits, "labels": np.pad(labels, (0, padding)), "weights": weights.astype(np.float32)}
    return {name: jnp.asarray(value) for name, value in batch.items()}


def by_hand(batch, weight_of, smoothing):
    """The mean of weight (-sum_c q_c log p_c), in float64, one example at a time."""
    total = count = 0.0
    columns = [np.asarray(batch[name], float) for name in ("logits", "labels", "weights")]
    for logits, label, real in zip(*columns, strict=True):
        if real:
            log_p = logits - np.log(np.exp(logits).sum())
            q = np.full(3, smoothing / 3)
            q[int(label)] += 1 - smoothing
            total -= weight_of[int(label)] * (q * log_p).sum()
            count += weight_of[int(label)]
    return total / count


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothing_spreads_mass_over_all_labels_and_in_training_only(rng, smoothing):
    batch = batch_of(rng, rng.integers(0, 3, 20))
    made = Given(label_smoothing=smoothing)
    assert made.mean(batch) == pytest.approx(by_hand(batch, [1, 1, 1], smoothing), rel=1e-5)
    assert made.mean(batch, train=False) == pytest.approx(by_hand(batch, [1, 1, 1], 0.0), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_balanced_labels_weigh_the_same_however_often_they_occur(rng, smoothing):
    labels = [0] * 14 + [1] * 4 + [2] * 2
    batch = batch_of(rng, labels)
    made = Given([14, 4, 2], balanced=True, label_smoothing=smoothing)
    assert made.mean(batch) == pytest.approx(by_hand(batch, [20 / 42, 20 / 12, 20 / 6], smoothing), rel=1e-5)
    # Over all training examples the weights add up to their number, and each label has a third of them.
    assert float(made.weights(batch).sum()) == pytest.approx(20, rel=1e-6)
    for label in range(3):
        only = batch | {"weights": batch["weights"] * (batch["labels"] == label)}
        assert float(made.weights(only).sum()) == pytest.approx(20 / 3, rel=1e-6)
    # More examples of the same kind change nothing.
    twice = {name: jnp.concatenate([value, value[:14]]) for name, value in batch.items()}
    more = Given([28, 4, 2], balanced=True, label_smoothing=smoothing)
    assert more.mean(twice) == pytest.approx(made.mean(batch), rel=1e-5)
    assert Given([14, 4, 2]).mean(batch) != pytest.approx(made.mean(batch), rel=1e-3)


def test_microbatches_of_balanced_labels_add_up(rng):
    batch = batch_of(rng, rng.integers(0, 3, 17))
    made = Given([9, 5, 3], balanced=True)
    parts = [{name: value[i : i + 5] for name, value in batch.items()} for i in range(0, 20, 5)]
    total = sum(made.total(part) for part in parts)
    weight = sum(float(made.weights(part).sum()) for part in parts)
    assert total / weight == pytest.approx(made.mean(batch), rel=1e-5)


def test_balanced_labels_change_the_loss_and_not_the_accuracy(rng):
    """Two of three labels are right; the wrong one would count for two thirds if examples were balanced."""
    batch = batch_of(rng, [0, 0, 0, 1], padding=2)
    batch["logits"] = jnp.zeros_like(batch["logits"]).at[:, 0].set(1.0)
    accuracy = Given([3, 1, 1], balanced=True).terms(batch["logits"], batch, True)["accuracy"]
    assert float(accuracy.mean) == pytest.approx(3 / 4)
