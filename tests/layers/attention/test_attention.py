import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import Position
from transformer.layers.mixers import MultiHeadAttention


def make(rng, x, **fields):
    fields = {"num_heads": 4, "head_dim": 8, "num_kv_heads": 4, "use_bias": True} | fields
    module = MultiHeadAttention(position=Position(), **fields)
    inputs = {"mask": Mask(), "positions_bt": jnp.zeros(x.shape[:2], jnp.int32)}
    params = random_params(rng, module, x, scale=x.shape[-1] ** -0.5, **inputs)

    def apply(x, mask=inputs["mask"]):
        return module.apply({"params": params}, x, mask=mask, positions_bt=inputs["positions_bt"])[0]

    return apply, jax.tree.map(lambda p: np.asarray(p, np.float64), params)


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "num_kv_heads"), [(4, 8, 4), (4, 32, 4), (4, 8, 2), (4, 8, 1), (1, 32, 1)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_is_a_sum_over_heads(rng, num_heads, head_dim, num_kv_heads, causal):
    """Narrow, wide, grouped and multi-query heads: out = sum_h softmax(Q_h K_h^T / sqrt(k)) V_h W_h, which is
    also the concatenation of the heads times one matrix."""
    x = rng.normal(size=(2, 7, 32)).astype(np.float32)
    apply, p = make(rng, x, num_heads=num_heads, head_dim=head_dim, num_kv_heads=num_kv_heads)
    summed, joined = np.zeros(x.shape), []
    for h in range(num_heads):
        g = h // (num_heads // num_kv_heads)
        q = x @ p["query"]["kernel"][:, h] + p["query"]["bias"][h]
        k = x @ p["key"]["kernel"][:, g] + p["key"]["bias"][g]
        v = x @ p["value"]["kernel"][:, g] + p["value"]["bias"][g]
        scores = q @ k.swapaxes(1, 2) / np.sqrt(head_dim)
        if causal:
            scores[:, np.triu(np.ones((7, 7), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        head = weights / weights.sum(-1, keepdims=True) @ v
        summed += head @ p["output"]["kernel"][h]
        joined.append(head)
    concatenated = np.concatenate(joined, -1) @ p["output"]["kernel"].reshape(-1, 32)
    np.testing.assert_allclose(concatenated, summed, atol=1e-9)
    y = apply(x, Mask(causal=causal))
    np.testing.assert_allclose(y, summed + p["output"]["bias"], atol=2e-5)


def test_permuting_inputs_permutes_outputs(rng):
    x = rng.normal(size=(2, 9, 32)).astype(np.float32)
    apply, _ = make(rng, x)
    order = rng.permutation(9)
    np.testing.assert_allclose(apply(x[:, order]), np.asarray(apply(x))[:, order], atol=2e-6)
    assert not np.allclose(
        apply(x[:, order], Mask(causal=True)), np.asarray(apply(x, Mask(causal=True)))[:, order]
    )


def test_padding_is_never_seen(rng):
    x = rng.normal(size=(2, 9, 32)).astype(np.float32)
    apply, _ = make(rng, x)
    valid = jnp.arange(9)[None] < jnp.array([[9], [5]])
    changed = x.copy()
    changed[1, 5:] += 100.0
    before, after = (np.asarray(apply(value, Mask(key_valid_bs=valid))) for value in (x, changed))
    np.testing.assert_array_equal(before[1, :5], after[1, :5])
    np.testing.assert_allclose(before[1, :5], np.asarray(apply(x[1:, :5]))[0], atol=2e-6)


def test_weights_are_sown_only_when_asked(rng):
    x = rng.normal(size=(1, 4, 16)).astype(np.float32)
    module = MultiHeadAttention(num_heads=2, head_dim=8, num_kv_heads=2, position=Position())
    inputs = {"mask": Mask(causal=True), "positions_bt": jnp.zeros((1, 4), jnp.int32)}
    variables = module.init(jax.random.key(0), x, **inputs)
    assert set(variables) == {"params"}
    (out, _), sown = module.apply(variables, x, **inputs, mutable=["intermediates"])
    (weights,) = sown["intermediates"]["weights"]
    np.testing.assert_allclose(weights.sum(-1), np.ones((1, 2, 4)), atol=1e-6)
    np.testing.assert_allclose(out, module.apply(variables, x, **inputs)[0], atol=1e-6)


def test_training_transposes_each_array_of_the_heads_once(rng):
    """Queries, keys, values and outputs: no array is turned to be read and turned back."""
    apply, _ = make(rng, np.zeros((1, 1, 32), np.float32), num_kv_heads=2)
    x = jnp.zeros((2, 7, 32))
    assert str(jax.make_jaxpr(lambda x: apply(x, Mask(causal=True)))(x)).count(" transpose[") == 4
