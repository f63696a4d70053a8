"""Recurrent layers against loops in float64 and against PyTorch; alignments against their formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.parameters import random_params
from transformer.layers.alignment import ALIGNMENTS, additive
from transformer.layers.recurrence import CELLS, RNNLayer, boundaries

WIDTH, INPUTS = 5, 4


def make(rng, cell, **fields):
    layer = RNNLayer(cell, WIDTH, **fields)
    flags = jnp.ones((1, 1), bool)
    return layer, random_params(rng, layer, jnp.zeros((1, 1, INPUTS)), flags, flags)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def loop(cell, params, x_td, begin_d=None):
    """One sequence, one step at a time, in float64."""
    exact = jax.tree.map(np.float64, params)
    w, b, u, c = (exact[name][part] for name in ("input", "recurrent") for part in ("kernel", "bias"))
    start = np.zeros(WIDTH) if begin_d is None else np.float64(begin_d)
    h, memory, states = np.tanh(start), start, []
    for x_d in np.float64(x_td):
        x_gd, u_gd = np.tensordot(x_d, w, 1) + b, np.tensordot(h, u, 1) + c
        if cell == "gru":
            r, z = sigmoid(x_gd[:2] + u_gd[:2])
            h = (1 - z) * np.tanh(x_gd[2] + r * u_gd[2]) + z * h
        else:
            i, f, g, o = x_gd + u_gd
            memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(memory)
        states.append(h)
    return np.array(states)


def packed(rng, lengths=((3, 1, 4), (2, 5)), t=10):
    """Segments 1, 2 ... of these lengths in each row, then padding."""
    segments = np.zeros((len(lengths), t), np.int32)
    for row, parts in zip(segments, lengths, strict=True):
        row[: sum(parts)] = np.repeat(np.arange(1, len(parts) + 1), parts)
    return segments, rng.normal(size=(*segments.shape, INPUTS)).astype(np.float32)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("with_begin", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_each_segment_of_packed_rows_is_a_loop_of_its_own(rng, cell, reverse, with_begin):
    layer, params = make(rng, cell, reverse=reverse)
    segments, x = packed(rng)
    starts, ends, valid = boundaries(jnp.asarray(segments))
    begin = rng.normal(size=(*segments.shape, WIDTH)).astype(np.float32) if with_begin else None
    got = jax.jit(layer.apply)({"params": params}, x, ends if reverse else starts, valid, begin)
    turn = slice(None, None, -1 if reverse else 1)
    for row, numbers in enumerate(segments):
        for number in range(1, numbers.max() + 1):
            own = np.flatnonzero(numbers == number)[turn]
            expected = loop(cell, params, x[row, own], None if begin is None else begin[row, own[0]])
            np.testing.assert_allclose(got[row, own], expected, atol=1e-5)
    last = got[:, 0] if reverse else np.stack([got[0, 7], got[1, 6]])
    if not reverse:
        np.testing.assert_array_equal(got[:, -1], last)  # padding keeps the state
    assert np.isfinite(got).all()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_is_that_of_steps_in_a_row(rng, cell, reverse):
    """The backward pass is written by hand: it must be autodiff's of the same recurrence, unrolled."""
    layer, params = make(rng, cell, reverse=reverse)
    segments, x = packed(rng, lengths=((2, 3), (1, 2)), t=6)
    starts, ends, valid = boundaries(jnp.asarray(segments))
    starts = ends if reverse else starts
    begin, weights = (jnp.asarray(rng.normal(size=(2, 6, WIDTH)), jnp.float32) for _ in range(2))

    def scanned(params, x, begin):
        return jnp.sum(weights * layer.apply({"params": params}, x, starts, valid, begin))

    def unrolled(params, x, begin):
        state, total = (jnp.zeros((2, WIDTH)),) * CELLS[cell].parts, 0.0
        for t in range(6)[:: -1 if reverse else 1]:
            where = lambda flag, a, b: jax.tree.map(functools.partial(jnp.where, flag[:, None]), a, b)  # noqa: E731
            state = where(starts[:, t], CELLS[cell].begin(begin[:, t]), state)
            new = layer.apply({"params": params}, x[:, t], state, method="step")
            state = where(valid[:, t], new, state)
            total += jnp.sum(weights[:, t] * state[0])
        return total

    value, got = jax.jit(jax.value_and_grad(scanned, (0, 1, 2)))(params, jnp.asarray(x), begin)
    expected_value, expected = jax.jit(jax.value_and_grad(unrolled, (0, 1, 2)))(params, jnp.asarray(x), begin)
    np.testing.assert_allclose(value, expected_value, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, expected)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(got))


@pytest.mark.parametrize("cell", CELLS)
def test_equals_pytorch_with_its_weights(rng, cell):
    torch = pytest.importorskip("torch")
    layer, params = make(rng, cell)
    theirs = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](INPUTS, WIDTH, batch_first=True)
    ours = {"ih": params["input"], "hh": params["recurrent"]}
    with torch.no_grad():
        for name, part in ours.items():
            kernel, bias = np.asarray(part["kernel"]), np.asarray(part["bias"])
            getattr(theirs, f"weight_{name}_l0").copy_(torch.tensor(kernel.reshape(len(kernel), -1).T))
            getattr(theirs, f"bias_{name}_l0").copy_(torch.tensor(bias.reshape(-1)))
        x = rng.normal(size=(3, 7, INPUTS)).astype(np.float32)
        expected = theirs(torch.tensor(x))[0].numpy()
    starts, _, valid = boundaries(jnp.ones((3, 7), jnp.int32))
    got = jax.jit(layer.apply)({"params": params}, x, starts, valid)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_keeps_float32_states_and_stays_near(rng, cell):
    layer, params = make(rng, cell)
    segments, x = packed(rng)
    starts, _, valid = boundaries(jnp.asarray(segments))
    low = RNNLayer(cell, WIDTH, dtype="bfloat16")
    exact, rounded = (jax.jit(each.apply)({"params": params}, x, starts, valid) for each in (layer, low))
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(rounded), exact, atol=0.1)
    state = jax.eval_shape(
        lambda: low.apply(
            {"params": params}, x[:, 0], CELLS[cell].begin(jnp.zeros((2, WIDTH))), method="step"
        )
    )
    assert all(part.dtype == jnp.float32 for part in state)


def test_a_new_layer_is_orthogonal_and_its_lstm_remembers():
    flags = jnp.ones((1, 1), bool)
    for cell in CELLS:
        init = jax.jit(RNNLayer(cell, WIDTH).init)
        params = nn.meta.unbox(init(jax.random.key(0), jnp.zeros((1, 1, INPUTS)), flags, flags))["params"]
        for gate in range(CELLS[cell].gates):
            kernel = np.asarray(params["recurrent"]["kernel"][:, gate])
            np.testing.assert_allclose(kernel @ kernel.T, np.eye(WIDTH), atol=1e-5)
        bias = np.asarray(params["input"]["bias"] + params["recurrent"]["bias"])
        expected = np.zeros_like(bias)
        expected[1] = cell == "lstm"
        np.testing.assert_array_equal(bias, expected)


def test_segments_begin_end_and_are_where_they_are():
    got = boundaries(jnp.asarray([[0, 1, 1, 3, 2, 0], [1, 1, 1, 1, 1, 1]]))
    expected = (
        [[0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0]],
        [[0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]],
        [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
    )
    for flags, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(flags, np.array(wanted, bool))


@pytest.mark.parametrize("kind", ALIGNMENTS)
def test_alignments_are_their_formulas(rng, kind):
    b, t, s, d = 2, 3, 4, WIDTH
    q, h = rng.normal(size=(b, t, d)).astype(np.float32), rng.normal(size=(b, s, d)).astype(np.float32)
    allowed = rng.random((b, t, s)) < 0.6
    allowed[0, 0] = False
    alignment = ALIGNMENTS[kind](d)

    def whole(module, q, h, allowed):
        return module(q, module.remember(h), allowed)

    init = nn.init(whole, alignment)
    params = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), q, h, allowed)).get("params", {})
    params = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params)
    apply = nn.apply(whole, alignment, mutable=["intermediates"])
    got, sown = jax.jit(apply)({"params": params}, q, h, allowed)
    exact = jax.tree.map(np.float64, params)
    expected, weights = np.zeros((b, t, d)), np.zeros((b, t, s))
    for i, j in np.ndindex(b, t):
        scores = np.full(s, -np.inf)
        for k in np.flatnonzero(allowed[i, j]):
            if kind == "dot":
                scores[k] = np.float64(q[i, j]) @ h[i, k]
            else:
                query = q[i, j] @ exact["query"]["kernel"] + exact["query"]["bias"]
                scores[k] = exact["score"] @ np.tanh(query + h[i, k] @ exact["key"]["kernel"])
        if allowed[i, j].any():
            e = np.exp(scores - scores.max())
            weights[i, j] = e / e.sum()
        expected[i, j] = weights[i, j] @ h[i]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(sown["intermediates"]["weights"][0][:, 0], weights, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 40, 100, 10**6])
def test_additive_scores_in_parts_are_the_same_with_the_same_gradient(rng, chunk):
    q, k, v = (jnp.asarray(rng.normal(size=n), jnp.float32) for n in ((2, 7, 3), (2, 4, 3), (3,)))
    weights = jnp.asarray(rng.normal(size=(2, 7, 4)), jnp.float32)

    def plain(q, k, v):
        return jnp.einsum("btsd,d->bts", jnp.tanh(q[:, :, None] + k[:, None]), v)

    def both(score):
        return jax.jit(
            lambda *x: (score(*x), jax.grad(lambda *x: jnp.sum(weights * score(*x)), (0, 1, 2))(*x))
        )

    got, expected = both(functools.partial(additive, chunk=chunk))(q, k, v), both(plain)(q, k, v)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, expected)


def test_additive_scores_hold_no_more_than_a_part():
    q, k, v = jnp.zeros((2, 32, 8)), jnp.zeros((2, 16, 8)), jnp.zeros(8)
    chunk = 2 * 4 * 16 * 8

    def largest(chunk):
        grad = jax.grad(lambda *x: jnp.sum(jnp.sin(additive(*x, chunk=chunk))), (0, 1, 2))
        sizes = []

        def visit(jaxpr):
            for equation in jaxpr.eqns:
                sizes.extend(each.aval.size for each in equation.outvars)
                jax.tree.map(
                    lambda x: visit(x.jaxpr if hasattr(x, "jaxpr") else x),
                    [p for p in equation.params.values() if hasattr(p, "jaxpr") or hasattr(p, "eqns")],
                )

        visit(jax.make_jaxpr(grad)(q, k, v).jaxpr)
        return max(sizes)

    assert largest(chunk) <= chunk < 2 * 32 * 16 * 8 <= largest(10**9)
