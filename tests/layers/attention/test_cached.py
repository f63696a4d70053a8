"""Attention over a cache: the reference's result, without a copy of the cache at any step."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.table import Table
from transformer.errors import UserError
from transformer.layers.attention.cache import Cache, KVCache
from transformer.layers.attention.kernels import choose
from transformer.layers.attention.kernels.cached import cached
from transformer.layers.attention.kernels.position_scoring import PositionScoring
from transformer.layers.attention.kernels.reference import reference
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask


def extras(rng, h, k, indices, s):
    """Everything that may be done to scores and values."""
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return PositionScoring(
        query_positions_bt=indices,
        key_positions_bs=jnp.broadcast_to(jnp.arange(s), (len(indices), s)),
        params={"bias": normal(h, 32, 32), "values": normal(32, k)},
        sinks_h=normal(h),
        position=Table(heads=h, width=k),
        soft_cap=1.5,
    )


@pytest.mark.parametrize("heads,key,value", [(2, 10, 5), (4, 5, 5), (2, 5, 0)])
def test_keys_and_values_that_do_not_fit_the_cache_are_refused(heads, key, value):
    fitting, other = (KVCache.empty(1, 3, widths, "float32") for widths in ((2, 5, 5), (heads, key, value)))
    fitting.write(fitting, 0)
    held = re.escape("KV cache: its keys and values have (heads, width) [(2, 5), (2, 5)], those of ")
    with pytest.raises(UserError, match=f"^{held}.*; override `cache_widths` of"):
        fitting.write(other, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("with_extras", [False, True])
@pytest.mark.parametrize("b,t,h,g", [(1, 1, 4, 4), (3, 1, 4, 2), (2, 3, 6, 1), (1, 2, 4, 2)])
def test_equals_the_reference(rng, b, t, h, g, with_extras):
    s, k, start = 9, 5, 4
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    q, key, value = normal(b, t, h, k), normal(b, s, g, k), normal(b, s, g, k)
    indices = jnp.broadcast_to(start + jnp.arange(t), (b, t))
    valid = jnp.asarray(rng.random((b, s)) < 0.7).at[:, start].set(True)
    mask = Mask(query_indices_bt=indices, key_valid_bs=valid, causal=True)
    scoring = extras(rng, h, k, indices, s) if with_extras else Scoring()
    assert choose("auto", q, key, key, mask=mask) is cached
    assert choose("reference", q, key, key, mask=mask) is reference
    dout = normal(b, t, h, k)

    def with_gradients(kernel):
        def attend(q, key, value, scoring):
            return kernel(q, key, value, mask=mask, scoring=scoring)

        out, back = jax.vjp(attend, q, key, value, scoring)
        *gradients, of_scoring = back(dout)
        return out, gradients, of_scoring.params, of_scoring.sinks_h

    got, expected = (jax.jit(with_gradients, static_argnums=0)(kernel) for kernel in (cached, reference))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)


@pytest.mark.parametrize("b,t,s", [(0, 1, 9), (2, 0, 9), (2, 1, 0)])
def test_no_rows_no_queries_or_no_keys(b, t, s):
    q, key = jnp.ones((b, t, 4, 5)), jnp.ones((b, s, 2, 5))
    mask = Mask(query_indices_bt=jnp.zeros((b, t), jnp.int32), causal=True)
    found = cached(q, key, jnp.ones((b, s, 2, 3)), mask=mask)
    np.testing.assert_array_equal(found, np.zeros((b, t, 4, 3), np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize("with_extras", [False, True])
@pytest.mark.parametrize("m,r,t,h,g", [(1, 1, 1, 2, 2), (2, 3, 1, 4, 2), (1, 4, 2, 4, 4), (3, 2, 3, 2, 1)])
def test_rows_that_share_keys_see_those_of_their_ancestors(rng, m, r, t, h, g, with_extras):
    b, s, k, start = m * r, 7, 5, 3
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    q, key, value = normal(b, t, h, k), normal(b, s, g, k), normal(b, s, g, k)
    ancestors = rng.integers(0, r, (m, r, s))
    valid = rng.random((b, s)) < 0.7
    valid[:, start] = True
    indices = jnp.broadcast_to(start + jnp.arange(t), (b, t))
    scoring = extras(rng, h, k, indices, s) if with_extras else Scoring()

    own_key, own_value = np.empty_like(key), np.empty_like(value)
    for source, row, slot in np.ndindex(m, r, s):
        there = source * r + ancestors[source, row, slot]
        own_key[source * r + row, slot] = key[there, slot]
        own_value[source * r + row, slot] = value[there, slot]
    alone = Mask(query_indices_bt=indices, key_valid_bs=valid, causal=True)
    expected = reference(q, own_key, own_value, mask=alone, scoring=scoring)
    mask = alone.replace(ancestors_mrs=jnp.asarray(ancestors, jnp.int32))
    for kernel in (cached, reference):
        got = jax.jit(lambda *inputs, kernel=kernel: kernel(*inputs, mask=mask, scoring=scoring))(
            q, key, value
        )
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("r", [0, 1, 4])
@pytest.mark.parametrize("b", [1, 4])
def test_a_loop_of_steps_writes_in_place(b, r):
    """The compiled body of a decoding loop, with r beams a prompt or without any, makes no array as large as
    the cache, except the cache."""
    g, s, k = 4, 128, 32

    def step(state):
        cache, q_bthk = state
        if r:
            cache = cache.take(jnp.argsort(q_bthk[:, 0, 0, 0])).own(cache.filled_b[0])
        layer = cache.layers[0].write(
            KVCache(q_bthk.swapaxes(1, 2), 2 * q_bthk.swapaxes(1, 2)), cache.filled_b[0]
        )
        indices_bt = cache.filled_b[:, None]
        mask = Mask(query_indices_bt=indices_bt, ancestors_mrs=cache.ancestors_mrs, causal=True)
        out = cached(q_bthk, layer.key_bgsk.swapaxes(1, 2), layer.value_bgsk.swapaxes(1, 2), mask=mask)
        return cache.replace(layers=(layer,), filled_b=cache.filled_b + 1), out

    def loop(q_bthk):
        layer, none_b = KVCache.empty(b, s, (g, k, k), jnp.float32), jnp.zeros(b, jnp.int32)
        cache = Cache((layer,), none_b, none_b, s)
        cache = cache.repeat(r) if r else cache
        return jax.lax.while_loop(lambda state: state[0].filled_b[0] < s, step, (cache, q_bthk))

    compiled = jax.jit(loop).lower(jnp.zeros((b * max(r, 1), 1, g, k))).compile()
    size = b * max(r, 1) * g * s * k * 4
    assert compiled.memory_analysis().temp_size_in_bytes < size
    big = [
        line
        for line in compiled.as_text().splitlines()
        if "while" in line and " copy(" in line and f"{s},{k}]" in line
    ]
    assert not big
