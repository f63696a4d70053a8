"""Arrays in 8 bits against NumPy: their errors, products with them, and caches of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.attention.cache import KVCache
from transformer.layers.embedding import Embedding
from transformer.layers.linear import contract
from transformer.layers.quantized import Quantized


def exact(x: Quantized) -> np.ndarray:
    return np.asarray(x.values, np.float64) * np.asarray(x.scale, np.float64)


@pytest.mark.parametrize("axes", [-1, (0,), (0, 1), (-3, -1)])
def test_int8_is_the_nearest_of_255_steps_of_each_group(rng, axes):
    x = (rng.normal(size=(4, 5, 6)) * np.exp(3 * rng.normal(size=(4, 5, 1)))).astype(np.float32)
    x[1] = 0
    x[2, 3] = 0
    found = Quantized.of(jnp.asarray(x), "int8", axes)
    scale = np.abs(x).max(axis=axes, keepdims=True).astype(np.float64) / 127
    np.testing.assert_allclose(found.scale, scale, rtol=1e-6)
    steps = x / np.where(scale > 0, scale, 1)
    nearest = np.round(steps)
    clear = np.abs(np.abs(steps - np.trunc(steps)) - 0.5) > 1e-4
    np.testing.assert_array_equal(np.asarray(found.values)[clear], nearest[clear])
    assert (np.abs(exact(found) - x) <= scale / 2 * (1 + 1e-4)).all()
    assert np.abs(np.asarray(found.values, int)).max() == 127
    assert found.values.dtype == jnp.int8 and found.shape == x.shape
    np.testing.assert_allclose(found.astype("float32"), exact(found), rtol=1e-6)


def test_float8_errs_by_a_sixteenth_of_an_entry(rng):
    x = (rng.normal(size=(16, 64)) * np.exp(2 * rng.normal(size=(16, 64)))).astype(np.float32)
    x[3] = 0
    found = Quantized.of(jnp.asarray(x), "float8", -1)
    scale = np.abs(x).max(axis=-1, keepdims=True).astype(np.float64) / 448
    np.testing.assert_allclose(found.scale, scale, rtol=1e-6)
    assert (np.abs(exact(found) - x) <= np.maximum(np.abs(x) / 16, scale / 1024) * (1 + 1e-5)).all()
    assert np.abs(np.asarray(found.values, np.float32)).max() == 448
    np.testing.assert_allclose(found.astype("float32"), exact(found), rtol=1e-6)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["int8", "float8"])
@pytest.mark.parametrize("dtype,error", [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("contracted,features", [((7,), (2, 3)), ((3, 5), (4,)), ((3, 87), (257,))])
def test_products_are_those_of_what_is_stored(rng, kind, dtype, error, contracted, features):
    """One scale along all contracted axes, for a kernel and a transposed one, of one expert or of several;
    the largest kernel is multiplied in tiles, which leave a row of it over."""
    axis = len(contracted)
    x = jnp.asarray(jnp.asarray(rng.normal(size=(2, 3, *contracted)), dtype), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*contracted, *features)), jnp.float32)
    small = Quantized.of(kernel, kind, tuple(range(axis)))
    expected = np.tensordot(np.asarray(x, np.float64), exact(small), axis)
    found = contract(x, small, dtype=dtype, axis=axis)
    assert found.dtype == dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=error, atol=error * 10)
    turned = jax.tree.map(lambda part: jnp.moveaxis(part, range(axis), range(-axis, 0)), small)
    back = contract(x, turned, dtype=dtype, out_dtype="float32", axis=axis, transposed=True)
    np.testing.assert_allclose(back, expected, rtol=1e-5, atol=1e-4)
    one = jax.tree.map(lambda part: part[None], small)
    several = jax.vmap(lambda kernel: contract(x, kernel, dtype="float32", axis=axis))(one)
    np.testing.assert_allclose(several[0], expected, rtol=1e-5, atol=1e-4)


def test_a_table_in_int8_is_looked_up_and_multiplied_by_its_rows(rng):
    module = Embedding(5, 8, multiple=4, scale=True)
    table = jnp.asarray(rng.normal(size=(8, 8)) * np.arange(1, 9)[:, None], jnp.float32)
    small = Quantized.of(table, "int8", -1)
    tokens, x = np.array([[4, 0, 3]]), rng.normal(size=(1, 2, 8)).astype(np.float32)
    apply = lambda *inputs, **options: module.apply({"params": {"table": small}}, *inputs, **options)  # noqa: E731
    np.testing.assert_allclose(apply(tokens), exact(small)[tokens] * 8**0.5, rtol=1e-5)
    logits = apply(x, method="attend")
    np.testing.assert_allclose(logits[..., :5], (x @ exact(small).T)[..., :5], rtol=1e-4, atol=1e-4)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("with_values", [True, False])
def test_a_cache_in_int8_holds_every_entry_to_half_a_step(rng, with_values):
    """Written at its start, in its middle and at its end, grown, and as a ring: what it holds is the
    float cache, and its bytes are a quarter and the scales."""
    b, g, k = 2, 3, 16

    def of(slots: int) -> KVCache:
        new = [jnp.asarray(rng.normal(size=(b, g, slots, k)) * 3, jnp.float32) for _ in range(2)]
        return KVCache(new[0], new[1] if with_values else None)

    def near(small: KVCache, full: KVCache) -> None:
        found = KVCache.of(*small.read("float32"))
        assert small.slots == full.slots == found.slots and small.wraps == full.wraps
        for ours, theirs, scale in zip(
            jax.tree.leaves(found), jax.tree.leaves(full), jax.tree.leaves(small)[1::2], strict=True
        ):
            step = np.abs(theirs).max(axis=-1, keepdims=True) / 127
            np.testing.assert_allclose(scale, step, rtol=1e-6)
            assert (np.abs(ours - theirs) <= step / 2 * (1 + 1e-4)).all()

    full = KVCache.empty(b, 6, (g, k, k if with_values else 0), "float32")
    small = full.quantized()
    assert jax.tree.leaves(small)[0].dtype == jnp.int8
    for start, count in ((0, 4), (jnp.int32(2), 1), (jnp.int32(4), 2), (6, 3)):
        new = of(count)
        small, full = small.write(new, start), full.write(new, start)
        near(small, full)
    small, full = small.hold(12, 12, 9), full.hold(12, 12, 9)
    near(small, full)
    small, full = small.hold(20, 5, 9), full.hold(20, 5, 9)
    assert small.wraps
    for start, count in ((jnp.int32(9), 1), (jnp.int32(10), 3)):
        new = of(count)
        small, full = small.write(new, start), full.write(new, start)
        near(small, full)
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(cache)) for cache in (small, full)]
    assert sizes[0] == sizes[1] * (k + 4) / (4 * k)
    assert small.read("bfloat16")[0].dtype == jnp.bfloat16
