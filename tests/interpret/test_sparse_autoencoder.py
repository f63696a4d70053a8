import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.interpret.subjects import subject_of
from transformer.errors import UserError
from transformer.interpret.instruments.sparse_autoencoder import (
    decode,
    encode,
    initial,
    mean_loss,
    site_of,
    table,
    trained,
)
from transformer.interpret.interventions import Edit, zero
from transformer.sums import Sum


@pytest.mark.parametrize("shift", [0, -3])
def test_the_largest_features_alone_are_active(rng, shift):
    x_md = rng.normal(size=(6, 5)).astype(np.float32)
    sae = initial(x_md, 12) | {"threshold": jnp.asarray(rng.normal(size=12) + shift)}
    features_mf = np.asarray(encode(sae, x_md, 3))
    bias, encoder, threshold = (
        np.asarray(sae[name], np.float64) for name in ("bias", "encoder", "threshold")
    )
    np.testing.assert_allclose(bias, x_md.mean(0), rtol=1e-5, atol=1e-6)
    for x_d, features_f in zip(x_md, features_mf, strict=True):
        all_f = np.maximum((x_d - bias) @ encoder + threshold, 0)
        expected_f = np.where(np.isin(np.arange(12), np.argsort(-all_f)[:3]), all_f, 0)
        np.testing.assert_allclose(features_f, expected_f, atol=1e-5)
    expected_md = features_mf @ np.asarray(sae["decoder"]) + bias
    np.testing.assert_allclose(decode(sae, features_mf), expected_md, atol=1e-5)


@pytest.mark.thorough
def test_it_finds_the_directions_that_data_are_made_of(rng):
    """Sums of 2 of 16 random directions in 12 dimensions, around a mean, of any scale."""
    directions_fd = rng.normal(size=(16, 12))
    directions_fd /= np.linalg.norm(directions_fd, axis=1, keepdims=True)
    chosen_m2 = np.argsort(rng.random((4000, 16)), axis=1)[:, :2]
    amounts_m2 = rng.uniform(1, 2, chosen_m2.shape)
    x_md = 30 * np.einsum("mi,mid->md", amounts_m2, directions_fd[chosen_m2]) + 50
    sae = trained(x_md.astype(np.float32), 32, 2000, active=2)
    np.testing.assert_allclose(np.linalg.norm(sae["decoder"], axis=1), 1, atol=1e-5)
    error_md = x_md - np.asarray(decode(sae, encode(sae, x_md, 2)))
    assert 1 - np.sum(error_md**2) / np.sum((x_md - x_md.mean(0)) ** 2) > 0.85
    nearest_f = np.max(directions_fd @ np.asarray(sae["decoder"]).T, axis=1)
    assert np.median(nearest_f) > 0.95


@pytest.mark.thorough
def test_the_loss_is_that_of_the_edited_model(rng):
    """An identity recovers the whole loss; zeros are zero ablation."""
    subject = subject_of(rng, scale=0.1)
    whole = mean_loss(subject)
    terms = [subject.loss(subject.params, batch)["loss"] for batch in subject.batches("validation")]
    assert whole == pytest.approx(float(sum(t.total for t in terms) / sum(t.weight for t in terms)), rel=1e-5)
    assert mean_loss(subject, Edit("blocks/0", lambda path, x, _: x)) == pytest.approx(whole, rel=1e-6)
    assert abs(mean_loss(subject, zero("blocks/0")) - whole) > 1e-3


def test_one_site_is_read_and_a_loss_has_targets(rng):
    subject = subject_of(rng)
    assert site_of(subject, "") == "blocks/0"
    with pytest.raises(UserError, match=r"^--site: 'blocks/\*' fits blocks/0, blocks/1; expected one path"):
        site_of(subject, "blocks/*")
    empty = dataclasses.replace(
        subject, loss=lambda params, batch: {"loss": Sum.of(jnp.ones(2), jnp.zeros(2))}
    )
    with pytest.raises(UserError, match=r"^--batches: the batches have no targets"):
        mean_loss(empty)


@pytest.mark.thorough
def test_a_table_reports_the_reconstruction(rng):
    options = {"site": "blocks/0", "steps": 200}
    subject = subject_of(rng, rng.integers(0, 19, (64, 8)), 32, options, scale=0.1)
    shown = table(subject)
    explained, sparsity = (
        float(shown.notes[0].split(name)[1].split()[0].rstrip(",")) for name in ("explained", "L0")
    )
    assert 0.5 < explained < 1 and 1 < sparsity <= 8.01
    whole, ours, zeros = (
        float(shown.notes[1].split(name)[1].split()[0].rstrip(",:")) for name in ("loss", "tion", "zeros")
    )
    recovered = float(shown.notes[1].split("recovered")[1].split(";")[0])
    assert whole == pytest.approx(mean_loss(subject), abs=1e-4)
    assert zeros == pytest.approx(mean_loss(subject, zero("blocks/0")), abs=1e-4)
    assert recovered == pytest.approx((zeros - ours) / (zeros - whole), abs=0.02) and recovered > 0.5
    assert shown.rows[0].startswith("feature_") and shown.values_rc.shape == (16, 8)
