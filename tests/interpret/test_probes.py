import numpy as np
import pytest

from tests.interpret.subjects import subject_of
from transformer.errors import UserError
from transformer.interpret.instruments import PROPERTIES as NAMES
from transformer.interpret.instruments.base import Batch
from transformer.interpret.instruments.probes import (
    PROPERTIES,
    accuracy,
    control_labels,
    probe,
    ridge,
    table,
)


def test_a_ridge_regression_is_the_minimum(rng):
    """Of the stacked least-squares problem [X; sqrt(penalty) I] W = [Y; 0]."""
    x_nd, labels_n = rng.normal(size=(30, 4)) + 2, rng.integers(0, 3, 30)
    rows = np.vstack([np.pad(x_nd, ((0, 0), (0, 1)), constant_values=1), np.diag([0.7**0.5] * 4 + [0])])
    targets = np.vstack([np.eye(3)[labels_n], np.zeros((5, 3))])
    expected_dc = np.linalg.lstsq(rows, targets, rcond=None)[0]
    np.testing.assert_allclose(ridge(x_nd, labels_n, 0.7), expected_dc, atol=1e-10)
    scores_nc = x_nd @ expected_dc[:4] + expected_dc[4]
    assert accuracy(expected_dc, x_nd, labels_n) == np.mean(scores_nc.argmax(1) == labels_n)


def test_a_control_label_depends_on_the_type_alone(rng):
    tokens_n, labels_n = rng.integers(0, 500, 20_000), rng.choice(2, 20_000, p=[0.8, 0.2])
    control_n = control_labels(tokens_n, labels_n)
    assert all(len(set(control_n[tokens_n == token])) == 1 for token in range(500))
    assert 0.7 < np.mean(control_n == 0) < 0.9


def test_selectivity_tells_what_is_encoded_from_what_is_memorised(rng):
    """One-hot vectors of types have all functions of the type; a direction for a property has that alone."""
    tokens_n = rng.integers(0, 20, 4000)
    labels_n = tokens_n % 2
    task, control, selectivity = probe(np.eye(20)[tokens_n], tokens_n, labels_n, 2000)
    assert (task, control) == (1, 1) and selectivity == 0
    task, control, selectivity = probe(np.eye(2)[labels_n], tokens_n, labels_n, 2000)
    assert task == 1 and control < 0.8 and selectivity == task - control
    tokens_n[2000:] = rng.integers(20, 40, 2000)  # types that were not seen in the first half
    assert probe(np.eye(40)[tokens_n], tokens_n, tokens_n % 2, 2000)[0] < 0.8


def test_properties_of_tokens():
    assert tuple(PROPERTIES) == NAMES
    names = ["A b", "é", "7", " x", "!", ""]
    batch = Batch({}, np.array([[0, 1, 2], [3, 4, 5]]), np.ones((2, 3), bool))
    found = {
        name: function(batch, lambda ids: [names[i] for i in ids]) for name, function in PROPERTIES.items()
    }
    np.testing.assert_array_equal(found["position"], [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(found["previous"], [[-1, 0, 1], [-1, 3, 4]])
    np.testing.assert_array_equal(found["character"], [[0, 1, 2], [3, 4, 4]])


@pytest.mark.thorough
def test_a_table_has_the_layers_and_no_padding(rng):
    """Token 18 stands only in padding, so that no probe meets it."""
    rows_nt = rng.integers(0, 18, (64, 8))
    rows_nt[::2, -2:] = 18
    subject = subject_of(rng, rows_nt, 16, {"property": "previous"})
    shown = table(subject)
    assert shown.rows == ["blocks/0/input", "blocks/0", "blocks/1"] and "18 labels" in shown.title
    assert shown.values_rc[0, 1] > 0.9, "the embedding tells types apart"
    assert shown.values_rc[0, 0] < 0.3 and shown.values_rc[1, 0] > shown.values_rc[0, 0]
    with pytest.raises(UserError, match=r"^--property: character: 1 labels"):
        table(subject_of(rng, rows_nt, 16, {"property": "character"}))
