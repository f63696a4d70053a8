"""Every kernel against attention in float64 NumPy, forward and backward."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.errors import UserError
from transformer.layers.kernels import KERNELS, choose
from transformer.layers.masks import Mask


def exact(q, k, v, allowed, bias, dout):
    """The output and the three gradients of sum(output * dout), by the formulas, in float64."""
    b, _, h, width = q.shape
    groups = k.shape[2]
    q, dout = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, dout))
    k, v = (np.repeat(np.asarray(x, np.float64).transpose(0, 2, 1, 3), h // groups, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(width) + (0 if bias is None else np.asarray(bias, np.float64))
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    dweights = dout @ v.swapaxes(2, 3)
    dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))
    dq = dscores @ k / np.sqrt(width)
    dk, dv = dscores.swapaxes(2, 3) @ q / np.sqrt(width), weights.swapaxes(2, 3) @ dout
    dk, dv = (x.reshape(b, groups, h // groups, -1, width).sum(axis=2) for x in (dk, dv))
    return [x.transpose(0, 2, 1, 3) for x in (weights @ v, dq, dk, dv)]


def segments(rng, b, t):
    """Documents of random lengths, then padding, numbered 0, which sees itself alone."""
    cuts = np.sort(rng.integers(0, t, (b, 3)), axis=1)
    numbers = 1 + (np.arange(t) >= cuts[:, :1]) + (np.arange(t) >= cuts[:, 1:2])
    return np.where(np.arange(t) < np.maximum(cuts[:, 2:], 1), numbers, 0)


def assert_exact(kernel, rng, mask, t, *, s=None, h=4, g=2, bias_heads=0, dtype="float32", tolerance=2e-5):
    b, width, s = 2, 8, s or t
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    q, k, v, dout = draw(b, t, h, width), draw(b, s, g, width), draw(b, s, g, width), draw(b, t, h, width)
    bias = draw(1, bias_heads, t, s).astype(jnp.float32) if bias_heads else None

    @jax.jit
    def got(q, k, v, mask):
        out, back = jax.vjp(lambda *inputs: kernel(*inputs, mask=mask, bias=bias), q, k, v)
        return out, *back(dout)

    results = got(q, k, v, mask)
    expected = exact(q, k, v, np.asarray(mask.dense(t, s)), bias, dout)
    for name, ours, theirs in zip(("output", "dq", "dk", "dv"), results, expected, strict=True):
        assert ours.dtype == jnp.dtype(dtype)
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), theirs, atol=tolerance, rtol=tolerance, err_msg=name
        )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    module = importlib.import_module("transformer.layers.kernels.blockwise")  # the name is also a function
    monkeypatch.setattr(module, "BLOCK", 8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [1, 7, 8, 9, 29])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_causal_and_windowed(rng, kernel, t, window):
    assert_exact(KERNELS[kernel], rng, Mask(causal=True, window=window), t)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("h,g", [(4, 4), (4, 1), (6, 3)])
@pytest.mark.parametrize("bias_heads", [0, 1, -1])
def test_segments_groups_and_biases(rng, kernel, h, g, bias_heads):
    packed = jnp.asarray(segments(rng, 2, 19))
    heads = h if bias_heads < 0 else bias_heads
    assert_exact(KERNELS[kernel], rng, Mask(packed, packed, causal=True), 19, h=h, g=g, bias_heads=heads)


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_that_may_see_nothing_are_zero_and_so_are_their_gradients(rng, kernel):
    valid = rng.random((2, 17)) < 0.5
    valid[0] = False
    valid[:, 0] = False  # the first query has no key at all
    mask = Mask(key_valid_bs=jnp.asarray(valid), causal=True)
    assert_exact(KERNELS[kernel], rng, mask, 17)


def test_a_query_side_and_a_key_side_of_different_lengths(rng):
    target, source = jnp.asarray(segments(rng, 2, 6)), jnp.asarray(segments(rng, 2, 11))
    assert_exact(KERNELS["reference"], rng, Mask(target, source), 6, s=11)


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_precision_is_as_exact_as_its_type(rng, kernel):
    assert_exact(KERNELS[kernel], rng, Mask(causal=True), 21, dtype="bfloat16", tolerance=0.06)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_keeps_the_mean_and_drops_its_share(rng, kernel):
    t, rate = 24, 0.3
    q = jnp.zeros((1, t, 1, t))
    v = jnp.asarray(np.eye(t)[None, :, None], jnp.float32)  # the output is the weights themselves

    def weights(key):
        options = {"mask": Mask(causal=True), "dropout_rate": rate, "dropout_rng": key}
        return KERNELS[kernel](q, q, v, **options)[0, :, 0]

    drawn = jax.jit(jax.vmap(weights))(jax.random.split(jax.random.key(int(rng.integers(1 << 30))), 2000))
    uniform = np.tril(np.ones((t, t))) / np.arange(1, t + 1)[:, None]
    np.testing.assert_allclose(drawn.mean(axis=0), uniform, atol=0.08)
    lower = np.tril(np.ones((t, t), bool))
    assert abs(float((np.asarray(drawn)[:, lower] == 0).mean()) - rate) < 0.01
    kept = np.asarray(drawn)[:, lower] / uniform[lower]
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-4)


def test_what_a_kernel_cannot_serve_is_refused_by_name(rng):
    q, k = jnp.zeros((1, 4, 2, 8)), jnp.zeros((1, 4, 2, 8))
    with pytest.raises(UserError, match="'blockwise' cannot serve here: the mask is not causal"):
        choose("blockwise", q, k, mask=Mask())
    with pytest.raises(UserError, match="do not stand where the keys do"):
        choose("blockwise", q, k[:, :2], mask=Mask(causal=True))
    assert choose("auto", q, k, mask=Mask()) is KERNELS["reference"]
    assert choose("auto", q, k, mask=Mask(causal=True)) is KERNELS["blockwise"]
