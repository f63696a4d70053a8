"""Every member of `LOSSES`: a new one is tested without a line of tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training.losses import LOSSES
from transformer.training.losses.token_losses import LossConfig, loss_of_states, token_loss


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_falls_with_the_probability_and_has_a_gradient_everywhere(name):
    loss = LossConfig(name=name).loss
    log_p = jnp.concatenate([-jnp.geomspace(1e-8, 80.0, 60)[::-1], jnp.zeros(1)])
    values, slopes = loss(log_p), jax.vmap(jax.grad(loss))(log_p)
    assert values.shape == log_p.shape and values.dtype == log_p.dtype
    assert np.isfinite(values).all() and np.isfinite(slopes).all()
    assert (np.diff(values) <= 1e-6).all() and values[-1] == pytest.approx(0, abs=1e-6)
    assert loss(log_p.reshape(61, 1)).shape == (61, 1)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_same_with_some_logits_in_memory_at_once(name, rng):
    config, kernel = LossConfig(name=name), jnp.asarray(rng.normal(size=(5, 16)), jnp.float32)
    x, targets = rng.normal(size=(2, 6, 5)).astype(np.float32), rng.integers(0, 16, (2, 6))
    expected = token_loss(x @ kernel, targets, 16, config.loss)
    found = loss_of_states(
        lambda x: x @ kernel, x, targets, LossConfig(name=name, chunk_size=4), 16, config.loss
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
