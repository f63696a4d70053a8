"""Each rung against float64 loops, and the last one against `MultiHeadAttention`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.alignment import AdditiveAlignment, DotAlignment
from transformer.layers.attention import basics
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import Position
from transformer.layers.mixers import MultiHeadAttention

T, S, D, K, H = 5, 7, 6, 4, 3


def softmax(scores: list[float]) -> np.ndarray:
    e = np.exp(np.array(scores) - max(scores))
    return e / e.sum()


def attend(score, queries, keys, values, allowed=None) -> np.ndarray:
    """sum_s softmax_s(score(q_t, k_s)) v_s, a query at a time, over the allowed keys alone."""
    out = np.zeros((len(queries), values.shape[1]))
    for t, q in enumerate(queries):
        seen = [s for s in range(len(keys)) if allowed is None or allowed[t, s]]
        if seen:
            for weight, s in zip(softmax([score(q, keys[s]) for s in seen]), seen, strict=True):
                out[t] += weight * values[s]
    return out


def lower(t: int) -> np.ndarray:
    return np.tril(np.ones((t, t), bool))


def low(*arrays):
    return [jnp.asarray(array, jnp.float32) for array in arrays]


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_without_and_with_projections(rng, causal):
    x, *kernels = (rng.normal(size=shape) for shape in [(T, D), (D, K), (D, K), (D, K)])
    mask = lower(T) if causal else None
    assert_close(basics.self_attention(*low(x), causal=causal), attend(np.dot, x, x, x, mask))
    q, k, v = (x @ kernel for kernel in kernels)
    projected = basics.projected_self_attention(*low(x, *kernels), causal=causal)
    assert_close(projected, attend(np.dot, q, k, v, mask))


@pytest.mark.parametrize("rung", ["self_attention", "projected_self_attention"])
def test_without_a_mask_order_is_not_seen_and_with_one_the_future_is_not(rng, rung):
    # small scores: the weight of a key whose score is 104 below the highest is 0 in float32
    x, *kernels = low(*(rng.normal(0, 0.5, shape) for shape in [(T, D), (D, K), (D, K), (D, K)]))
    step = getattr(basics, rung)
    kernels = kernels if "projected" in rung else []
    shift = np.roll(np.arange(T), 1)
    assert_close(step(x[shift], *kernels), step(x, *kernels)[shift])
    assert not np.allclose(step(x[shift], *kernels, causal=True), step(x, *kernels, causal=True)[shift])

    influence = jax.jit(jax.jacobian(lambda x: step(x, *kernels, causal=True)))(x)  # (t, d or k, s, d)
    size_ts = np.abs(influence).max((1, 3))
    assert np.all(size_ts[~lower(T)] == 0) and np.all(size_ts[lower(T)] > 0)


def test_scaled_scores_keep_their_variance(rng):
    for k in (4, 16, 256):
        q, keys = rng.normal(size=(100, k)), rng.normal(size=(100, k))
        scores = basics.scaled_scores(*low(q, keys))
        assert_close(scores, [[sum(q[t] * keys[s]) / k**0.5 for s in range(100)] for t in range(100)])
        assert np.std(scores) == pytest.approx(1, abs=0.4)
        assert np.std(q @ keys.T) == pytest.approx(k**0.5, rel=0.4)


def test_the_slope_of_the_softmax_is_the_nuclear_norm_of_its_jacobian(rng):
    for scale in (0.1, 1, 5):
        scores = scale * rng.normal(size=S)
        jacobian = np.zeros((S, S))
        for i in range(S):
            push = np.eye(S)[i] * 1e-5
            jacobian[:, i] = (softmax(list(scores + push)) - softmax(list(scores - push))) / 2e-5
        assert_close(basics.softmax_slope(*low(scores)), np.linalg.svd(jacobian, compute_uv=False).sum())


def test_larger_scores_have_smaller_gradients(rng):
    """For any scores at all, so also for those that grow as sqrt(k) where nothing divides by it."""
    scores = rng.normal(size=(50, S))
    slopes = np.array([basics.softmax_slope(*low(scores * scale)) for scale in np.geomspace(0.01, 1000, 30)])
    assert np.all(np.diff(slopes, axis=0) <= 2e-6)
    assert np.all(slopes[0] > 0.99 * (1 - 1 / S)) and np.median(slopes[-1]) < 1e-6

    def mean_slope(k, score):
        q, keys = rng.normal(size=(200, k)), rng.normal(size=(16, k))
        return np.mean(basics.softmax_slope(score(*low(q, keys))))

    unscaled = [mean_slope(k, lambda q, keys: q @ keys.T) for k in (1, 16, 256)]
    scaled = [mean_slope(k, basics.scaled_scores) for k in (1, 16, 256)]
    assert unscaled[0] > 1.2 * unscaled[1] > 1.5 * unscaled[2]
    assert min(scaled) > 0.7 * max(scaled)


def test_looking_up(rng):
    q, k, v = rng.normal(size=(T, K)), rng.normal(size=(S, K)), rng.normal(size=(S, D))
    for temperature in (0.3, 1.0, K**0.5):
        expected = attend(lambda a, b, by=temperature: a @ b / by, q, k, v)
        assert_close(basics.look_up(*low(q, k, v), temperature), expected)
    all_keys = jnp.ones((1, 1), bool)
    assert_close(
        basics.look_up(*low(q, k, v), K**0.5),
        basics.scaled_dot_product_attention(*low(q, k, v), all_keys),
    )
    assert_close(basics.look_up(*low(q, k, v), 1e7), np.tile(v.mean(0), (T, 1)))
    assert_close(basics.look_up(*low(np.eye(S) * 2, np.eye(S), v), 1e-3), v)
    with pytest.raises(UserError, match=r"temperature: 0\.0; expected more than 0"):
        basics.look_up(*low(q, k, v), 0.0)


def test_looking_up_the_keys_themselves_is_dot_alignment(rng):
    q, h = rng.normal(size=(T, D)), rng.normal(size=(S, D))
    house = DotAlignment(D).apply({}, *low(q[None]), low(h[None]), jnp.ones((1, 1, S), bool))
    assert_close(basics.look_up(*low(q, h, h), 1.0), house[0])


def test_a_query_that_may_look_at_nothing_gets_zeros_and_finite_gradients(rng):
    q, k, v = rng.normal(size=(T, K)), rng.normal(size=(S, K)), rng.normal(size=(S, K))
    allowed = rng.random((T, S)) < 0.5
    allowed[0], allowed[1] = True, False
    out = basics.scaled_dot_product_attention(*low(q, k, v), jnp.asarray(allowed))
    assert_close(out, attend(lambda a, b: a @ b / K**0.5, q, k, v, allowed))
    assert np.all(out[1] == 0)

    def loss(q, k, v):
        return jnp.sum(basics.scaled_dot_product_attention(q, k, v, jnp.asarray(allowed)) ** 2)

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*low(q, k, v))
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
    assert np.all(gradients[0][1] == 0) and np.all(gradients[0][0] != 0)


@pytest.mark.parametrize("cross", [False, True])
def test_concatenated_and_summed_heads(rng, cross):
    x = rng.normal(size=(T, D))
    memory = rng.normal(size=(S, D)) if cross else x
    kernels = [rng.normal(size=(D, H, K)) for _ in range(3)]
    output = rng.normal(size=(H, K, D))
    allowed = rng.random((T, len(memory))) < 0.7
    expected = np.zeros((T, D))
    for h in range(H):
        q, k, v = (source @ kernel[:, h] for source, kernel in zip((x, memory, memory), kernels, strict=True))
        expected += attend(lambda a, b: a @ b / K**0.5, q, k, v, allowed) @ output[h]
    found = basics.heads(*low(x, memory, *kernels), jnp.asarray(allowed))
    assert found.shape == (H, T, K)
    for join in (basics.join_by_concatenation, basics.join_by_sum):
        np.testing.assert_allclose(join(found, *low(output)), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_step_equals_the_library_s_attention(rng, causal):
    x = jnp.asarray(rng.normal(size=(2, T, D)), jnp.float32)
    fields = {"num_heads": H, "head_dim": K, "num_kv_heads": H, "use_bias": False}
    module = MultiHeadAttention(position=Position(), **fields)
    inputs = {"mask": Mask(causal=causal), "positions_bt": jnp.zeros((2, T), jnp.int32)}
    params = nn.meta.unbox(module.init(jax.random.key(int(rng.integers(1 << 30))), x, **inputs))["params"]
    query, key, value, output = (params[name]["kernel"] for name in ("query", "key", "value", "output"))
    allowed = jnp.asarray(lower(T) if causal else np.ones((T, T), bool))

    def ladder(x_td):
        return basics.join_by_sum(basics.heads(x_td, x_td, query, key, value, allowed), output)

    assert_close(jax.vmap(ladder)(x), module.apply({"params": params}, x, **inputs)[0])


def test_additive_attention(rng):
    q, memory, allowed = rng.normal(size=(T, D)), rng.normal(size=(S, D)), rng.random((T, S)) < 0.7
    query, key, score = rng.normal(size=(D, D)), rng.normal(size=(D, D)), rng.normal(size=D)
    expected = attend(lambda a, b: sum(score * np.tanh(a @ query + b @ key)), q, memory, memory, allowed)
    found = basics.additive_attention(*low(q, memory, query, key, score), jnp.asarray(allowed))
    assert_close(found, expected)

    module = AdditiveAlignment(D)
    linear = {"query": {"kernel": query, "bias": np.zeros(D)}, "key": {"kernel": key}}
    variables = {"params": jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), linear | {"score": score})}
    remembered = module.apply(variables, *low(memory[None]), method="remember")
    house = module.apply(variables, *low(q[None]), remembered, jnp.asarray(allowed)[None])
    assert_close(found, house[0])
