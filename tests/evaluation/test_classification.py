import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.evaluation.classifier_scores import (
    BINS,
    ClassificationEvaluator,
    calibration_error,
    classification_sums,
    mean_logits,
    prediction_table,
    ranked_labels,
    text_sums,
    window_sums,
)
from transformer.evaluation.confusion import confusion_lines, f1_scores, macro_f1


def counted_by_hand(logits, labels, weights):
    """Everything in float64, one example at a time."""
    classes = logits.shape[-1]
    nll, right, confusion = [], [], np.zeros((classes, classes))
    bins = [[] for _ in range(BINS)]
    for logit, label, weight in zip(
        logits.reshape(-1, classes), labels.ravel(), weights.ravel(), strict=True
    ):
        if weight:
            p = np.exp(logit.astype(float) - logit.max())
            p /= p.sum()
            found = int(p.argmax())
            nll.append(-np.log(p[label]))
            right.append(found == label)
            confusion[label, found] += 1
            bins[min(int(p.max() * BINS), BINS - 1)].append((p.max(), found == label))
    error = sum(
        len(b) / len(nll) * abs(np.mean([c for c, _ in b]) - np.mean([r for _, r in b])) for b in bins if b
    )
    f1 = []
    for c in range(classes):
        tp = confusion[c, c]
        precision, recall = tp / max(confusion[:, c].sum(), 1), tp / max(confusion[c].sum(), 1)
        if confusion[:, c].sum() + confusion[c].sum():
            f1.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    scores = {"loss": np.mean(nll), "accuracy": np.mean(right), "f1": np.mean(f1), "calibration_error": error}
    return scores, confusion


class Batches:
    rows = SimpleNamespace(examples=0)

    def __init__(self, batches):
        self.batches = batches

    def iterate(self, start):
        return iter(self.batches[start:])


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_of_ragged_batches_are_those_of_the_whole(rng, classes):
    logits = rng.normal(size=(7, 4, 3, classes)).astype(np.float32) * 2
    labels = rng.integers(0, classes, (7, 4, 3)).astype(np.int32)
    weights = (rng.random((7, 4, 3)) < 0.6).astype(np.float32)
    weights[3] = 0
    batches = [
        {"logits": a, "labels": b, "weights": c} for a, b, c in zip(logits, labels, weights, strict=True)
    ]
    step = jax.jit(
        lambda params, batch: classification_sums(batch["logits"], batch["labels"], batch["weights"])
    )
    evaluator = ClassificationEvaluator(step, Batches(batches), lambda batch: batch)
    found = evaluator(None)
    expected, confusion = counted_by_hand(logits, labels, weights)
    assert found == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(evaluator.last["confusion"], confusion)


@pytest.mark.parametrize("classes", [2, 5])
def test_windows_in_any_order_count_as_one_text_by_their_mean_probability(rng, classes):
    """In a whole pass, in which text 0 has no window, and in half a pass, by the share that is there."""
    windows_n, label_n = rng.integers(1, 6, 30), rng.integers(0, classes, 30)
    text_w = rng.permutation(np.repeat(np.arange(1, 30), windows_n[1:]))
    count = len(text_w) // 8 * 8 + 8
    logits = 3 * rng.normal(size=(count, classes)).astype(np.float32)
    texts, weights = np.zeros(count, np.int32), np.zeros(count, np.float32)
    texts[: len(text_w)], weights[: len(text_w)] = text_w, 1 / windows_n[text_w]
    batches = [
        {"logits": a, "texts": b, "weights": c}
        for a, b, c in zip(
            logits.reshape(-1, 4, 2, classes), texts.reshape(-1, 4, 2), weights.reshape(-1, 4, 2), strict=True
        )
    ]
    p_wc = np.exp(logits.astype(float))
    p_wc /= p_wc.sum(axis=1, keepdims=True)

    def step(params, batch):
        return window_sums(batch["logits"], batch["texts"], batch["weights"], 30)

    for limit in (0, len(batches) // 2):
        evaluator = ClassificationEvaluator(
            jax.jit(step),
            Batches(batches),
            lambda batch: batch,
            limit,
            [*"abcde"[:classes]],
            lambda found: text_sums(found, label_n, windows_n),
        )
        found = evaluator(None)
        there = np.arange(count) < (8 * limit or count)
        shares = np.array([(there & (texts == n) & (weights > 0)).sum() / windows_n[n] for n in range(30)])
        p_nc = np.array([p_wc[there & (texts == n) & (weights > 0)].sum(axis=0) for n in range(30)])
        p_nc /= np.maximum(p_nc.sum(axis=1, keepdims=True), 1e-30)
        nll_n = [-np.log(p_c[label]) if p_c.any() else 0 for p_c, label in zip(p_nc, label_n, strict=True)]
        assert found["loss"] == pytest.approx(np.average(nll_n, weights=shares), rel=1e-5)
        right_n = p_nc.argmax(axis=1) == label_n
        assert found["accuracy"] == pytest.approx(np.average(right_n, weights=shares), rel=1e-5)
        assert evaluator.last["confusion"].sum() == pytest.approx(shares.sum(), rel=1e-5)
        said = re.search(r"accuracy (\S+)% of (\d+), ", evaluator.accuracy_line())
        assert float(said[1]) / 100 == pytest.approx(found["accuracy"], abs=2e-4)
        assert float(said[2]) == pytest.approx(shares.sum(), abs=0.51)
        assert evaluator.describe()["measured"].startswith(f"{said[2]} of ")
    assert shares.sum() < 29
    order = np.argsort(text_w, kind="stable")
    whole_nc = mean_logits(logits[: len(text_w)][order], windows_n[1:])
    expected = [np.log(p_wc[: len(text_w)][text_w == n].mean(axis=0)) for n in range(1, 30)]
    np.testing.assert_allclose(whole_nc, expected, rtol=1e-6, atol=1e-6)


def test_a_label_without_any_probability_costs_a_finite_loss():
    found = window_sums(jnp.array([[[1e4, 0.0]]]), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1)), 1)
    found = jax.tree.map(np.asarray, found)
    assert 80 < float(text_sums(found, np.array([1]), np.array([1]))["loss"].mean) < 100
    assert np.isfinite(mean_logits(np.array([[1e4, 0.0]]), np.array([1]))).all()


def test_a_class_that_never_occurs_has_no_part_in_anything_infinite():
    confusion = np.array([[5, 0, 0], [1, 3, 0], [0, 0, 0]])
    np.testing.assert_allclose(f1_scores(confusion), [10 / 11, 6 / 7, 0])
    assert calibration_error(np.zeros((3, BINS))) == 0


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_macro_f1_is_that_of_scikit_learn(rng, classes):
    metrics = pytest.importorskip("sklearn.metrics")
    absent = 0
    for _ in range(40):
        few = rng.choice(classes, int(rng.integers(1, classes + 1)), replace=False)
        truth, found = rng.choice(few, 12), rng.choice(rng.permutation(classes)[: len(few)], 12)
        confusion = np.zeros((classes, classes))
        np.add.at(confusion, (truth, found), 1)
        expected = metrics.f1_score(truth, found, average="macro", zero_division=0)
        assert macro_f1(confusion) == pytest.approx(expected, abs=1e-12)
        absent += len({*truth, *found}) < classes
    assert absent > 5
    assert macro_f1(np.zeros((classes, classes))) == 0


def test_a_confusion_matrix_as_text(rng):
    confusion = np.array([[1200, 3, 0], [40, 60, 0], [0, 0, 0]])
    lines = confusion_lines(confusion, ["fälschlich", "b", "a name\nof more than twenty letters"])
    header, first, second, third = [line.split() for line in lines]
    assert header[2:] == [
        "predicted",
        "fälschlich",
        "b",
        "a",
        "name",
        "of",
        "more",
        "than…",
        "recall",
        "precision",
        "F1",
    ]
    assert first == ["fälschlich", "1,200", "3", "0", "99.8%", "96.8%", f"{2400 / 2443:.4f}"]
    assert second == ["b", "40", "60", "0", "60.0%", "95.2%", f"{120 / 163:.4f}"]
    assert third[-6:] == ["0", "0", "0", "-", "-", "0.0000"]
    assert len({len(line) for line in lines}) == 1
    # Of many classes the commonest confusions are listed, and nothing else.
    many = np.diag(rng.integers(1, 9, 40))
    many[3, 7], many[20, 1] = 12, 30
    lines = confusion_lines(many, [f"c{i}" for i in range(40)])
    assert [line.strip() for line in lines[1:]] == [
        f"30 of {many[20].sum()} 'c20' as 'c1'",
        f"12 of {many[3].sum()} 'c3' as 'c7'",
    ]


def test_labels_of_several_lines_and_columns_are_one_name_in_a_line():
    labels = ["a\nb", "c\td", "e\u2028f\r\n"]
    (line,) = ranked_labels(np.array([[0.0, 9.0, 3.0]]), labels)[0]
    assert len(line.splitlines()) == 1
    assert [each.rpartition("=")[0] for each in line.split("\t")] == ["", "c d", "e f ", "a b"]
    header, row = prediction_table([(["x"], 0, np.array([0.0, 9.0, 3.0]))], ["text"], labels)
    assert header.count("\t") == row.count("\t") == 5 and not {*"\r\n"} & {*header}


def test_certain_and_right_is_calibrated(rng):
    labels = jnp.asarray(rng.integers(0, 4, 100))
    sums = classification_sums(100 * jax.nn.one_hot(labels, 4), labels, jnp.ones(100))
    assert calibration_error(np.asarray(sums["calibration"].total)) == pytest.approx(0, abs=1e-6)
    sums = classification_sums(100 * jax.nn.one_hot((labels + 1) % 4, 4), labels, jnp.ones(100))
    assert calibration_error(np.asarray(sums["calibration"].total)) == pytest.approx(1, abs=1e-6)


@pytest.mark.thorough
def test_intervals_are_those_of_examples_drawn_again(rng):
    logits = rng.normal(size=(300, 3)).astype(np.float32) + np.eye(3, dtype=np.float32)[np.arange(300) % 3]
    batch = {"logits": logits, "labels": np.arange(300) % 3, "weights": np.ones(300, np.float32)}

    def step(params, batch):
        return classification_sums(batch["logits"], batch["labels"], batch["weights"])

    evaluator = ClassificationEvaluator(step, Batches([batch]), lambda batch: batch)
    found, told = evaluator(None), evaluator.describe()
    assert told["measured"] == "300 of 300 examples"
    drawn = {"accuracy": [], "f1": []}
    for _ in range(1500):
        again = rng.integers(300, size=300)
        scores, _ = counted_by_hand(logits[again], batch["labels"][again], batch["weights"][again])
        for name, values in drawn.items():
            values.append(scores[name])
    for name, values in drawn.items():
        wanted = np.percentile(values, [2.5, 97.5])
        ends = [float(end) for end in re.search(r"interval (\S+) to (\S+) ", told[name]).groups()]
        np.testing.assert_allclose(ends, wanted, atol=0.15 * (wanted[1] - wanted[0]))
        assert ends[0] < found[name] < ends[1]
