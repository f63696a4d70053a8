import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from transformer.errors import UserError
from transformer.layers.embedding import PADDED_LOGIT
from transformer.training.losses import LossConfig, chunked, cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_against_the_smoothed_distribution_in_float64(rng, smoothing):
    """-sum_v p_v log q_v, with p = (1 - a) one-hot + a / V over the real vocabulary only."""
    vocab, padded = 11, 16
    logits = rng.normal(0, 3, (2, 5, padded))
    logits[..., vocab:] = PADDED_LOGIT
    targets = rng.integers(0, vocab, (2, 5))
    log_q = special.log_softmax(logits[..., :vocab], axis=-1)
    p = (1 - smoothing) * np.eye(vocab)[targets] + smoothing / vocab
    nll, smoothed, log_z = cross_entropy(
        jnp.asarray(logits, jnp.float32), jnp.asarray(targets), vocab_size=vocab, label_smoothing=smoothing
    )
    np.testing.assert_allclose(nll, -np.take_along_axis(log_q, targets[..., None], -1)[..., 0], atol=1e-5)
    np.testing.assert_allclose(smoothed, -(p * log_q).sum(-1), atol=1e-5)
    np.testing.assert_allclose(log_z, special.logsumexp(logits, axis=-1), atol=1e-5)


def test_half_precision_logits_are_summed_in_float32():
    logits = jnp.zeros((1, 1, 4096), jnp.bfloat16)
    _, _, log_z = cross_entropy(logits, jnp.zeros((1, 1), jnp.int32), vocab_size=4096)
    assert log_z.dtype == jnp.float32
    np.testing.assert_allclose(log_z, np.log(4096), rtol=1e-6)


@pytest.mark.parametrize("chunk", [0, 1, 3, 4, 10, 99])
def test_chunks_change_neither_values_nor_gradients(rng, chunk):
    """Also where the last chunk is not full, and where one chunk holds everything."""
    x = jnp.asarray(rng.normal(size=(2, 10, 4)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(4, 7)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 7, (2, 10)))
    weights = jnp.asarray(rng.random((2, 10)), jnp.float32)

    def loss(x, kernel, chunk):
        nll, _, log_z = chunked(lambda x, y: cross_entropy(x @ kernel, y, vocab_size=7), x, targets, chunk)
        return jnp.sum(weights * (nll + 0.1 * log_z**2))

    expected = jax.value_and_grad(loss, (0, 1))(x, kernel, 0)
    actual = jax.value_and_grad(loss, (0, 1))(x, kernel, chunk)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


def test_chunks_never_hold_all_logits():
    x, kernel, targets = jnp.ones((2, 64, 4)), jnp.ones((4, 1000)), jnp.zeros((2, 64), jnp.int32)

    def peak(chunk):
        def loss(kernel):
            return chunked(lambda x, y: cross_entropy(x @ kernel, y, vocab_size=1000), x, targets, chunk)[
                0
            ].sum()

        return jax.jit(jax.grad(loss)).lower(kernel).compile().memory_analysis().temp_size_in_bytes

    assert peak(8) < 0.5 * peak(0)


@pytest.mark.parametrize("change", [{"label_smoothing": 1.0}, {"z_loss": -1.0}, {"chunk_size": -1}])
def test_impossible_values_are_refused(change):
    with pytest.raises(UserError, match=next(iter(change))):
        LossConfig(**change)
