import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interpret.subjects import subject_of
from transformer.interpret.instruments.lens import lens
from transformer.interpret.instruments.tuned_lens import table, translated, tuned_lens


@pytest.mark.thorough
def test_without_training_it_is_the_logit_lens(rng):
    rows_nt = rng.integers(0, 19, (8, 8))
    subject = subject_of(rng, rows_nt, num_layers=3)
    _, results_2n = tuned_lens(subject, 0)
    log_p = np.asarray(
        jax.nn.log_softmax(lens(subject.model, subject.params, jnp.asarray(rows_nt))), np.float64
    )
    kl_nbt = (np.exp(log_p[-1]) * (log_p[-1] - log_p)).sum(-1)
    valid_bt = np.ones((8, 8), bool)
    valid_bt[::2, -2:] = False
    np.testing.assert_allclose(results_2n[0], kl_nbt[:, valid_bt].mean(axis=1), atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(results_2n[0], results_2n[1])
    assert results_2n[0, -1] == 0 and (results_2n[0, :-1] > 0).all()


@pytest.mark.thorough
def test_training_brings_the_layers_nearer_to_the_last(rng):
    subject = subject_of(rng, rng.integers(0, 19, (32, 8)), 8, {"steps": 30})
    maps, results_2n = tuned_lens(subject, 30)
    assert (results_2n[1, :-1] < 0.95 * results_2n[0, :-1]).all() and results_2n[1, -1] == 0
    shown = table(subject)
    np.testing.assert_allclose(shown.values_rc, results_2n.T)
    assert shown.rows == ["embedding", "layer_0", "layer_1"]
    x_nbtd = rng.normal(size=(2, 1, 3, 16))
    expected = x_nbtd[1, 0, 2] + x_nbtd[1, 0, 2] @ np.asarray(maps["kernel"][1]) + maps["bias"][1]
    np.testing.assert_allclose(translated(maps, x_nbtd)[1, 0, 2], expected, rtol=1e-5, atol=1e-5)
