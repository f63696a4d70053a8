"""Every kernel against attention in float64 NumPy, forward and backward."""

import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layers.table import Table
from transformer.errors import UserError
from transformer.layers.attention import kernels
from transformer.layers.attention.kernels import choose, parts
from transformer.layers.attention.kernels.position_scoring import PositionScoring
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Blocks, Fixed, Global, Strided, Window

KERNELS = {name: kernels.KERNELS[name].attend for name in ("reference", "unrolled", "blockwise")}
"""Those that run anywhere; the others have tests of their own."""


def exact(q, k, v, allowed, dout, *, bias=0.0, values=0.0, soft_cap=0.0, sinks=None):
    """The output and the gradients of sum(output * dout), by the formulas, in float64: of q, k, v, the bias,
    the added values (s, k) and the sinks."""
    b, _, h, width = q.shape
    groups = k.shape[2]
    q, dout = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, dout))
    k, v = (np.repeat(np.asarray(x, np.float64).transpose(0, 2, 1, 3), h // groups, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(width) + bias
    squashed = soft_cap * np.tanh(scores / soft_cap) if soft_cap else scores
    slope = 1 - np.square(squashed / soft_cap) if soft_cap else 1.0
    e = np.where(allowed, np.exp(squashed), 0)
    sink = 0.0 if sinks is None else np.exp(np.asarray(sinks, np.float64))[None, :, None, None]
    total = e.sum(axis=-1, keepdims=True) + sink
    weights = e / np.where(total == 0, 1, total)
    out = weights @ (v + values)
    dweights = dout @ (v + values).swapaxes(2, 3)
    mean = (weights * dweights).sum(axis=-1, keepdims=True)
    dscores = weights * (dweights - mean) * slope
    dq = dscores @ k / np.sqrt(width)
    dk, dv = dscores.swapaxes(2, 3) @ q / np.sqrt(width), weights.swapaxes(2, 3) @ dout
    dsinks = -(sink / np.where(total == 0, 1, total) * mean).sum(axis=(0, 2, 3))
    dvalues = dv.sum(axis=(0, 1))
    dk, dv = (x.reshape(b, groups, h // groups, -1, width).sum(axis=2) for x in (dk, dv))
    return [*(x.transpose(0, 2, 1, 3) for x in (out, dq, dk, dv)), dscores, dvalues, dsinks]


def segments(rng, b, t):
    """Documents of random lengths, then padding, numbered 0, which sees itself alone."""
    cuts = np.sort(rng.integers(0, t, (b, 3)), axis=1)
    numbers = 1 + (np.arange(t) >= cuts[:, :1]) + (np.arange(t) >= cuts[:, 1:2])
    return np.where(np.arange(t) < np.maximum(cuts[:, 2:], 1), numbers, 0)


def assert_exact(
    kernel,
    rng,
    mask,
    t,
    *,
    s=None,
    h=4,
    g=2,
    bias_heads=0,
    soft_cap=0.0,
    sinks=False,
    dtype="float32",
    tolerance=2e-5,
):
    b, width, s = 2, 8, s or t
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    q, k, v, dout = draw(b, t, h, width), draw(b, s, g, width), draw(b, s, g, width), draw(b, t, h, width)
    scoring, extra = Scoring(soft_cap=soft_cap), {"soft_cap": soft_cap}
    learned = {"sinks_h": jnp.asarray(rng.normal(size=h), jnp.float32)} if sinks else {}
    if bias_heads:
        tables = {"bias": rng.normal(size=(bias_heads, 32, 32)), "values": rng.normal(size=(32, width))}
        learned["params"] = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tables)
        places = {"query_positions_bt": jnp.arange(t)[None], "key_positions_bs": jnp.arange(s)[None]}
        scoring = PositionScoring(soft_cap=soft_cap, position=Table(heads=bias_heads, width=width), **places)
        extra |= {"bias": tables["bias"][None, :, :t, :s], "values": tables["values"][:s]}

    @jax.jit
    def got(q, k, v, mask, learned):
        def attend(q, k, v, learned):
            return kernel(q, k, v, mask=mask, scoring=scoring.replace(**learned))

        out, back = jax.vjp(attend, q, k, v, learned)
        return out, *back(dout)

    *results, dlearned = got(q, k, v, mask, learned)
    expected = exact(
        q, k, v, np.asarray(mask.dense(t, s)), dout, sinks=learned.get("sinks_h") if sinks else None, **extra
    )
    same = functools.partial(np.testing.assert_allclose, atol=tolerance, rtol=tolerance)
    for name, ours, theirs in zip(("output", "dq", "dk", "dv"), results, expected[:4], strict=True):
        assert ours.dtype == jnp.dtype(dtype)
        same(np.asarray(ours, np.float64), theirs, err_msg=name)
    dscores, dvalues, dsinks = expected[4:]
    if bias_heads:
        dbias = dscores.sum(axis=0) if bias_heads > 1 else dscores.sum(axis=(0, 1))[None]
        same(dlearned["params"]["bias"][:, :t, :s], dbias, err_msg="dbias")
        same(dlearned["params"]["values"][:s], dvalues, err_msg="dvalues")
    if sinks:
        same(dlearned["sinks_h"], dsinks, err_msg="dsinks")


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("transformer.layers.attention.kernels.unrolled"), "BLOCK", 8)
        patch.setattr(parts, "SIZES", (8, 4))
        yield


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [1, 8, 29])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_causal_and_windowed(rng, kernel, t, window):
    pattern = None if window is None else Window(window)
    assert_exact(KERNELS[kernel], rng, Mask(causal=True, pattern=pattern), t)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pattern", [None, Window(5)])
def test_queries_that_begin_after_keys(rng, kernel, pattern):
    start, t = int(rng.integers(1, 20)), 13
    assert_exact(KERNELS[kernel], rng, Mask(causal=True, pattern=pattern, start=start), t, s=start + t)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("h,g,bias_heads", [(4, 4, 1), (4, 1, 0), (6, 3, -1)])
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


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("b,t,s", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 0, 0)])
def test_without_rows_queries_or_keys_outputs_and_gradients_are_zero(kernel, b, t, s):
    def loss(q, k, v):
        out = KERNELS[kernel](q, k, v, mask=Mask(causal=True))
        return jnp.sum(out), out

    inputs = jnp.ones((b, t, 4, 8)), jnp.ones((b, s, 2, 8)), jnp.ones((b, s, 2, 6))
    grads, out = jax.grad(loss, (0, 1, 2), has_aux=True)(*inputs)
    np.testing.assert_array_equal(out, np.zeros((b, t, 4, 6)))
    for grad, x in zip(grads, inputs, strict=True):
        np.testing.assert_array_equal(grad, np.zeros(x.shape))


@pytest.mark.parametrize("kernel", sorted(KERNELS.keys() - {"unrolled"}))
@pytest.mark.parametrize("pattern", [None, Window(3)])
def test_a_query_side_and_a_key_side_of_different_lengths(rng, kernel, pattern):
    target, source = jnp.asarray(segments(rng, 2, 6)), jnp.asarray(segments(rng, 2, 11))
    assert_exact(KERNELS[kernel], rng, Mask(target, source, pattern=pattern), 6, s=11)


SPARSE = [Window(2, dilation=3), Strided(5), Fixed(5, 2), Global(3, 2), Blocks(4)]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kernel", sorted(KERNELS.keys() - {"unrolled"}))
@pytest.mark.parametrize("pattern", SPARSE, ids=repr)
@pytest.mark.parametrize("causal", [True, False])
def test_patterns(rng, kernel, pattern, causal):
    assert_exact(KERNELS[kernel], rng, Mask(causal=causal, pattern=pattern), 29, h=2, g=2)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("h,g,d,bias_heads", [(4, 2, 2, 0), (4, 1, 4, 0), (2, 2, 2, 2)])
def test_blocks_drawn_for_each_head(rng, kernel, h, g, d, bias_heads):
    """Also for heads that share their keys, in packed rows, and with a bias, whose blocks are those of any
    head."""
    seeds_d = jnp.asarray(rng.integers(0, 99, d))
    drawn = {"pattern": Blocks(4, 2, per_head=True), "seeds_d": seeds_d, "heads_per_seed": h // d}
    assert_exact(KERNELS[kernel], rng, Mask(causal=True, **drawn), 29, h=h, g=g, bias_heads=bias_heads)
    numbers = segments(rng, 2, 29)
    places = np.stack([[np.sum(row[:i] == row[i]) for i in range(29)] for row in numbers])
    packed = Mask.self_attention(*map(jnp.asarray, (numbers, places)), causal=kernel == "unrolled")
    assert_exact(KERNELS[kernel], rng, packed.replace(**drawn), 29, h=h, g=g, bias_heads=bias_heads)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bias_heads", [0, 4])
def test_capped_scores_and_sinks(rng, kernel, bias_heads):
    extras = {"bias_heads": bias_heads, "soft_cap": 1.5, "sinks": True}
    assert_exact(KERNELS[kernel], rng, Mask(causal=True), 19, **extras)


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", [Strided(5), Global(3, 2)], ids=repr)
def test_sinks_are_counted_once_over_the_parts_of_a_pattern(rng, pattern):
    assert_exact(KERNELS["blockwise"], rng, Mask(causal=True, pattern=pattern), 29, sinks=True)


@st.composite
def calls(draw):
    """A kernel, lengths, heads, a mask, and what is done to scores, all that may meet."""
    size, extra = st.integers(1, 9), st.integers(1, 3)
    patterns = st.one_of(
        st.none(),
        st.builds(Window, size, extra),
        st.builds(Strided, size),
        st.builds(Fixed, st.integers(3, 9), extra),
        st.builds(Global, size, extra),
        st.builds(Blocks, size, st.integers(0, 3), st.integers(0, 99)),
    )
    causal, t, g = draw(st.booleans()), draw(st.integers(1, 32)), draw(st.integers(1, 3))
    start = draw(st.sampled_from([0, draw(st.integers(0, 32 - t))]))
    s, h = start + t if causal else draw(st.integers(1, 32)), g * draw(st.integers(1, 3))
    kernel = draw(st.sampled_from(sorted(KERNELS if causal else KERNELS.keys() - {"unrolled"})))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    numbers = (segments(rng, 2, t), segments(rng, 2, s)) if draw(st.booleans()) else (None, None)
    numbers = (numbers[1][:, start:], numbers[1]) if causal and numbers[0] is not None else numbers
    valid = rng.random((2, s)) < draw(st.floats(0, 1)) if draw(st.booleans()) else None
    mask = Mask(*numbers, valid, causal=causal, pattern=draw(patterns), start=start)
    mask = jax.tree.map(jnp.asarray, mask)
    extras = {
        "bias_heads": draw(st.sampled_from([0, 1, h])),
        "soft_cap": draw(st.sampled_from([0.0, 1.5])),
        "sinks": draw(st.booleans()),
    }
    return KERNELS[kernel], rng, mask, t, {"s": s, "h": h, "g": g} | extras


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(calls())
def test_whatever_meets(call):
    kernel, rng, mask, t, options = call
    assert_exact(kernel, rng, mask, t, **options)


def test_a_sink_takes_the_weight_of_a_query_that_sees_nothing(rng):
    mask = Mask(key_valid_bs=jnp.asarray(rng.random((2, 17)) < 0.1))
    for kernel in (KERNELS["reference"], KERNELS["blockwise"]):
        assert_exact(kernel, rng, mask, 17, sinks=True)


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", [None, Strided(3)])
@pytest.mark.parametrize("kernel", ["unrolled", "blockwise"])
def test_second_derivatives_in_either_order(rng, kernel, pattern):
    """The product of the Hessian with a vector, in reverse over reverse and in forward over reverse mode."""
    draw = lambda: [jnp.asarray(rng.normal(size=(2, 11, 2, 4)), jnp.float32) for _ in range(3)]  # noqa: E731
    at, along = draw(), draw()
    packed = jnp.asarray(segments(rng, 2, 11))
    options = {"mask": Mask(packed, packed, causal=True, pattern=pattern), "scoring": Scoring(soft_cap=3.0)}
    weights = jnp.asarray(rng.normal(size=(2, 11, 2, 4)), jnp.float32)

    def products(attend):
        gradient = jax.grad(lambda qkv: jnp.sum(weights * jnp.sin(attend(*qkv, **options))))
        inner = lambda qkv: sum(jnp.vdot(*each) for each in zip(gradient(qkv), along, strict=True))  # noqa: E731
        return jax.jit(jax.grad(inner))(at), jax.jit(lambda: jax.jvp(gradient, (at,), (along,))[1])()

    expected = products(KERNELS["reference"])
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), products(KERNELS[kernel]), expected
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_sums_are_in_float32_where_jax_has_64_bits(rng, kernel):
    with jax.enable_x64(True):
        assert_exact(KERNELS[kernel], rng, Mask(causal=True, pattern=Window(5)), 13, dtype="float64")


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_precision_is_as_exact_as_its_type(rng, kernel):
    assert_exact(KERNELS[kernel], rng, Mask(causal=True), 21, dtype="bfloat16", tolerance=0.06)


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_products_in_half_precision_have_operands_of_that_type(kernel):
    """Two of the forward pass and four of the backward pass, accumulated in float32."""
    x = jnp.zeros((1, 24, 2, 8), jnp.bfloat16)

    def loss(*qkv):
        return jnp.sum(jnp.sin(KERNELS[kernel](*qkv, mask=Mask(causal=True)).astype(jnp.float32)))

    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).as_text()
    types = [line.rpartition(" : ")[2] for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert len(types) >= 6
    for of in types:
        assert of.count("bf16") == 2 and of.endswith("xf32>"), of


@pytest.mark.parametrize("kernel", ["reference", "unrolled"])
def test_products_in_half_precision_sum_over_a_last_axis(kernel):
    """XLA on CPU has fast products of bfloat16 only where they sum over the last axis of the first factor."""
    x = jnp.zeros((1, 24, 2, 8), jnp.bfloat16)

    def loss(*qkv):
        return jnp.sum(KERNELS[kernel](*qkv, mask=Mask(causal=True)).astype(jnp.float32) ** 2)

    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).as_text()
    sums = re.findall(r"dot_general .*contracting_dims = \[(\d)\]", program)
    assert len(sums) >= 6 and set(sums) == {"3"}


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
    with pytest.raises(UserError, match="'unrolled' does not support these inputs: the mask is not causal"):
        choose("unrolled", q, k, k, mask=Mask())
    turned = Mask(causal=True, key_indices_bs=jnp.zeros((1, 4), jnp.int32))
    assert choose("unrolled", q, k, k, mask=turned) is kernels.cached
    assert choose("unrolled", q, k, k, mask=Mask(causal=True, start=2)) is KERNELS["unrolled"]
    assert choose("auto", q, k, k, mask=Mask()) is KERNELS["reference"]
    assert choose("auto", q, k, k, mask=Mask(causal=True)) is KERNELS["unrolled"]
    assert choose("auto", q, k, k, mask=Mask(causal=True, pattern=Window(2))) is KERNELS["blockwise"]
    long = jnp.zeros((1, 4096, 2, 8))
    assert choose("auto", long, long, long, mask=Mask()) is KERNELS["blockwise"]
    few = jnp.zeros((1, 300, 2, 8))
    assert choose("auto", few, long, long, mask=Mask(causal=True, start=3796)) is KERNELS["blockwise"]
    assert choose("auto", few, few, few, mask=Mask(causal=True)) is KERNELS["unrolled"]
