"""Top-k and top-p against their definitions, token by token in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding import sampling


def kept_k(x, k):
    return [{i for i in range(len(row)) if sum(row > row[i]) < k} for row in x]


def kept_p(x, p):
    probabilities = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    return [
        {i for i in range(len(row)) if q[row > row[i]].sum() < p}
        for row, q in zip(x, probabilities, strict=True)
    ]


def kept(filtered):
    return [set(np.flatnonzero(np.isfinite(row))) for row in np.asarray(filtered)]


def logits(rng, kind, b=5, v=37):
    x = rng.normal(size=(b, v), scale=10.0 ** rng.uniform(-3, 2, (b, 1)))
    if kind == "ties":
        x = rng.integers(-3, 3, (b, v)).astype(float)
    if kind == "filtered":
        x[rng.random((b, v)) < 0.5] = -np.inf
        x[:, 0] = 0.0
    if kind == "extreme":
        x = rng.choice([-1e38, -1e-38, 0.0, 1e-38, 1e30, 1e38], (b, v))
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", ["plain", "ties", "filtered", "extreme"])
@pytest.mark.parametrize("k", [1, 2, 7, 36, 37, 1000])
def test_top_k_keeps_exactly_those_with_fewer_than_k_above(rng, kind, k):
    x = logits(rng, kind)
    y = np.asarray(jax.jit(sampling.keep_top_k)(x, k))
    expected = [{i for i in row if np.isfinite(x[b, i])} for b, row in enumerate(kept_k(x, k))]
    assert kept(y) == expected
    np.testing.assert_array_equal(y[np.isfinite(y)], x[np.isfinite(y)])


@pytest.mark.parametrize("kind", ["plain", "ties", "filtered"])
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.5, 0.9, 0.999])
def test_top_p_keeps_exactly_those_with_less_than_p_above(rng, kind, p):
    x = logits(rng, kind)
    y = np.asarray(jax.jit(sampling.keep_top_p)(x, p))
    # Where float32 cannot tell on which side of p a sum lies, both answers are right.
    for row, low, high in zip(kept(y), kept_p(x, p - 1e-5), kept_p(x, p + 1e-5), strict=True):
        assert low <= row <= high
        assert row
    np.testing.assert_array_equal(y[np.isfinite(y)], x[np.isfinite(y)])


def test_top_p_of_the_textbook():
    x = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5], [0.4, 0.2, 0.2, 0.2]]))
    assert kept(sampling.keep_top_p(x, 0.7)) == [{0, 1}, {2, 3}, {0, 1, 2, 3}]  # ties stand together
    assert kept(sampling.keep_top_p(x, 0.35)) == [{0}, {3}, {0}]


def test_a_sum_that_reaches_p_stops_there():
    x = jnp.log(jnp.array([[0.5, 0.25, 0.125, 0.125]]))
    assert kept(sampling.keep_top_p(x, 0.5)) == [{0}]
    assert kept(sampling.keep_top_p(x, 0.75)) == [{0, 1}]


def test_off_values_keep_everything(rng):
    x = logits(rng, "plain")
    np.testing.assert_array_equal(sampling.keep_top_k(x, 0), x)
    np.testing.assert_array_equal(sampling.keep_top_p(x, 1.0), x)


@pytest.mark.parametrize("low,high", [(-(2**31), 2**31 - 1), (0, 0), (-5, 9)])
def test_first_finds_every_threshold(rng, low, high):
    thresholds = np.unique([low, high, *rng.integers(low, high, 50, endpoint=True)]).astype(np.int32)
    low_b, high_b = np.full_like(thresholds, low), np.full_like(thresholds, high)
    found = sampling.bisect(lambda x: x >= thresholds, low_b, high_b, halvings=32)
    np.testing.assert_array_equal(found, thresholds)
