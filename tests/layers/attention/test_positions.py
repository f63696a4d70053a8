import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS, Learned, Sinusoidal, SinusoidalHalves, sinusoid
from transformer.layers.attention.positions.alibi import slopes
from transformer.layers.attention.positions.t5 import T5


def build(name, **fields):
    """An encoding with those of the fields that it has, as models build it."""
    kind = POSITIONS[name]
    return kind(**{key: value for key, value in fields.items() if key in kind.__dataclass_fields__})


@pytest.mark.parametrize("width", [8, 9])
def test_sinusoid_against_its_formula(width):
    positions = np.array([[0, 1, 5, 100, 4095]])
    table = np.asarray(sinusoid(jnp.asarray(positions), width))
    for column in range(width):
        wavelength = 10000.0 ** (2 * (column // 2) / width)
        f = np.sin if column % 2 == 0 else np.cos
        np.testing.assert_allclose(table[0, :, column], f(positions[0] / wavelength), atol=5e-4)


def test_the_halves_of_marian_are_its_sines_and_its_cosines(rng):
    x, width = rng.normal(size=(2, 5, 6)), 6
    y = SinusoidalHalves().apply({}, jnp.asarray(x, jnp.float32), jnp.arange(5)[None], method="embed")
    for pos, i in np.ndindex(5, width // 2):
        angle = pos / 10000 ** (2 * i / width)
        added = np.array([math.sin(angle), math.cos(angle)])
        np.testing.assert_allclose(y[:, pos, [i, i + 3]] - x[:, pos, [i, i + 3]], [added] * 2, atol=1e-5)


def test_sinusoidal_adds_the_table(rng):
    x = rng.normal(size=(2, 3, 8)).astype(np.float32)
    positions = np.array([[0, 1, 2], [4, 0, 1]])
    y = Sinusoidal().embed(jnp.asarray(x), jnp.asarray(positions))
    np.testing.assert_allclose(y, x + np.asarray(sinusoid(jnp.asarray(positions), 8)), atol=1e-6)


def test_learned_adds_its_own_rows(rng):
    module, positions = Learned(max_length=5), jnp.array([[0, 4, 2]])
    x = jnp.asarray(rng.normal(size=(1, 3, 4)), jnp.float32)
    table = rng.normal(size=(5, 4)).astype(np.float32)
    y = module.apply({"params": {"table": table}}, x, positions, method="embed")
    np.testing.assert_allclose(y - x, table[[0, 4, 2]][None], atol=1e-6)
    later = Learned(max_length=3, offset=2).apply(
        {"params": {"table": table}}, x, positions // 2, method="embed"
    )
    np.testing.assert_allclose(later - x, table[[2, 4, 3]][None], atol=1e-6)


# Encodings of distances: each against its formula in float64, one pair of positions at a time.


def test_alibi_slopes_of_the_paper():
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    halves = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    np.testing.assert_allclose(slopes(12), [2.0**-i for i in range(1, 9)] + halves)
    np.testing.assert_allclose(slopes(16), [2.0 ** (-i / 2) for i in range(1, 17)])
    assert slopes(1) == [2.0**-8] and len(slopes(7)) == len(set(slopes(7))) == 7


def bucket(offset: int, causal: bool, num_buckets: int, max_distance: int) -> int:
    """The rule of T5 for one key - query, as its paper's authors state it in their code."""
    if causal:
        first, distance = 0, max(-offset, 0)
    else:
        num_buckets //= 2
        first, distance = (num_buckets if offset > 0 else 0), abs(offset)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    part = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + math.floor(part * (num_buckets - exact) + 1e-9), num_buckets - 1)


SIDES = [(True, 32, 128), (False, 32, 128), (True, 7, 20), (False, 10, 33), (False, 4, 2), (True, 64, 1000)]


@pytest.mark.parametrize(("causal", "num_buckets", "max_distance"), SIDES)
def test_t5_buckets_against_their_rule(causal, num_buckets, max_distance):
    offsets = np.arange(-1200, 1201)
    module = T5(causal=causal, num_buckets=num_buckets, max_distance=max_distance)
    expected = [bucket(offset, causal, num_buckets, max_distance) for offset in offsets.tolist()]
    np.testing.assert_array_equal(module.bucket(jnp.asarray(offsets)), expected)
    # There is no distance 0 after the query.
    assert len(set(expected)) == (num_buckets if causal else num_buckets - 1)


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [True, False])
def test_t5_buckets_as_transformers_has_them(causal):
    torch, t5 = pytest.importorskip("torch"), pytest.importorskip("transformers.models.t5.modeling_t5")
    offsets = np.arange(-300, 301)
    expected = t5.T5Attention._relative_position_bucket(torch.from_numpy(offsets), bidirectional=not causal)
    np.testing.assert_array_equal(T5(causal=causal).bucket(jnp.asarray(offsets)), expected.numpy())


def test_t5_refuses_buckets_without_distances():
    message = "^max_distance: 8 with 16 buckets to a side; expected at least 2 buckets and .* more than 8$"
    with pytest.raises(UserError, match=message):
        T5(max_distance=8).bucket(jnp.arange(3))


HEADS, WIDTH, REACH = 3, 4, 2


def alibi(arrays, i, j):
    return -np.array([2.0**-4, 2.0**-8, 2.0**-2]) * abs(i - j)


def t5(arrays, i, j):
    return arrays["table"][bucket(j - i, False, 8, 12)]


def t5_causal(arrays, i, j):
    return arrays["table"][bucket(j - i, True, 8, 12)]


def shaw(arrays, i, j):
    return arrays["q"] @ arrays["key"][np.clip(j - i, -REACH, REACH) + REACH] / math.sqrt(WIDTH)


def transformer_xl(arrays, i, j):
    width = HEADS * WIDTH
    r = np.zeros(width)
    for f in range(width // 2):
        angle = (i - j) / 10000.0 ** (2 * f / width)
        r[2 * f], r[2 * f + 1] = math.sin(angle), math.cos(angle)
    projected = np.einsum("fhk,f->hk", arrays["kernel"], r)
    return ((arrays["q"] + arrays["position_bias"]) * projected).sum(-1) / math.sqrt(WIDTH)


BIASES = {
    "alibi": ("alibi", {}, alibi),
    "t5": ("t5", {"num_buckets": 8, "max_distance": 12}, t5),
    "t5_causal": ("t5", {"causal": True, "num_buckets": 8, "max_distance": 12}, t5_causal),
    "shaw": ("shaw", {"max_distance": REACH}, shaw),
    "transformer_xl": ("transformer_xl", {}, transformer_xl),
}
"""(name, fields, f): f gives the biases (h) of a query, `q` among its arrays, at i for a key at j."""


def all_hooks(module, x_bthk, query_positions, key_positions):
    """Everything that a layer asks of its encoding."""
    weights = jnp.ones((x_bthk.shape[0], x_bthk.shape[2], query_positions.shape[1], key_positions.shape[1]))
    positions = query_positions, key_positions
    return module.query_bias(x_bthk), module.bias(x_bthk, *positions), module.values(weights, *positions)


def make(rng, name, **fields):
    """An encoding with random parameters, initialised as a layer does it, on one query and one key."""
    module, one = build(name, head_dim=WIDTH, **fields), jnp.zeros((1, 1), jnp.int32)
    made = module.init(jax.random.key(0), jnp.ones((1, 1, HEADS, WIDTH)), one, one, method=all_hooks)
    made = nn.meta.unbox(made).get("params", {})
    return module, {name: rng.normal(size=value.shape) for name, value in made.items()}


def some_positions(rng, batch):
    """Of queries (b, 5) and keys (b, 6): in no order, and some twice, as in a row of documents."""
    return rng.integers(0, 24, (batch, 5)), rng.integers(0, 24, (batch, 6))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", BIASES)
def test_bias_and_its_gradient_against_the_formula(rng, kind, rows):
    name, fields, formula = BIASES[kind]
    module, params = make(rng, name, **fields)
    q, (at_q, at_k) = rng.normal(size=(2, 5, HEADS, WIDTH)), some_positions(rng, rows)

    def expected(q, params):
        bias = np.zeros((2, HEADS, 5, 6))
        for b, t, s in np.ndindex(2, 5, 6):
            row = b if rows == 2 else 0
            bias[b, :, t, s] = formula(params | {"q": q[b, t]}, int(at_q[row, t]), int(at_k[row, s]))
        return bias

    def ours(q, params):
        bias = module.apply({"params": params}, q, at_q, at_k, method="bias")
        return jnp.broadcast_to(bias, (2, HEADS, 5, 6))

    check(rng, ours, expected, (q, params))


@pytest.mark.parametrize("rows", [1, 2])
def test_shaw_values_and_their_gradient_against_the_formula(rng, rows):
    module, params = make(rng, "shaw", max_distance=REACH)
    weights, (at_q, at_k) = rng.uniform(size=(2, HEADS, 5, 6)), some_positions(rng, rows)

    def expected(weights, params):
        values = np.zeros((2, 5, HEADS, WIDTH))
        for b, t, s in np.ndindex(2, 5, 6):
            row = b if rows == 2 else 0
            distance = np.clip(at_k[row, s] - at_q[row, t], -REACH, REACH)
            values[b, t] += weights[b, :, t, s, None] * params["value"][distance + REACH]
        return values

    check(
        rng,
        lambda w, params: module.apply({"params": params}, w, at_q, at_k, method="values"),
        expected,
        (weights, params),
    )


def check(rng, ours, expected, arguments):
    """Values, and derivatives in a random direction, of a float32 function against a float64 one."""
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), arguments)
    value = expected(*arguments)
    seed = rng.normal(size=value.shape)

    @jax.jit
    def value_and_gradient(arguments):
        value, backward = jax.vjp(ours, *arguments)
        return value, backward(jnp.asarray(seed, jnp.float32))

    y, gradient = value_and_gradient(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), arguments))
    np.testing.assert_allclose(y, value, atol=2e-4)
    ahead, behind = (
        expected(*jax.tree.map(lambda x, d, step=step: x + step * d, arguments, direction))
        for step in (1e-4, -1e-4)
    )
    slope = sum(
        np.sum(np.asarray(g, np.float64) * d)
        for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True)
    )
    assert slope == pytest.approx(np.sum(seed * (ahead - behind)) / 2e-4, abs=1e-2, rel=1e-3)


def test_transformer_xl_adds_its_first_bias_to_the_queries(rng):
    module, params = make(rng, "transformer_xl")
    q = rng.normal(size=(2, 5, HEADS, WIDTH)).astype(np.float32)
    y = module.apply({"params": params}, q, method="query_bias")
    np.testing.assert_allclose(y, q + params["content_bias"], atol=1e-5)


def test_transformer_xl_sees_distances_alone_far_from_the_start(rng):
    module, params = make(rng, "transformer_xl")
    q = np.broadcast_to(rng.normal(size=(1, 1, HEADS, WIDTH)), (1, 2, HEADS, WIDTH))
    apply = jax.jit(lambda *args: module.apply({"params": params}, *args, method="bias"))
    near, far = (apply(q, np.array([[20, 9]]) + start, np.array([[3, 7, 30]]) + start) for start in (0, 3000))
    np.testing.assert_allclose(far, near, atol=2e-2)


# What holds for every encoding.


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", POSITIONS)
def test_every_encoding_keeps_shape_and_type(name):
    module = build(name, max_length=16, head_dim=8)
    x, positions = jnp.ones((2, 4, 8), jnp.bfloat16), jnp.broadcast_to(jnp.arange(4), (2, 4))
    variables = module.init(jax.random.key(0), x, positions, method="embed")
    assert set(variables) == (
        {"params"} if isinstance(module, Learned) else set()
    )  # in an embedding, only what it needs
    embedded = module.apply(variables, x, positions, method="embed")
    rotated = module.apply(variables, x[:, :, None], positions, method="rotate")
    assert embedded.shape == x.shape and embedded.dtype == x.dtype
    assert rotated.shape == (2, 4, 1, 8) and rotated.dtype == x.dtype
    (queries, bias, values), _ = module.init_with_output(
        jax.random.key(0), x[:, :, None], positions, positions[:, :3], method=all_hooks
    )
    assert queries.shape == (2, 4, 1, 8) and queries.dtype == x.dtype
    assert bias is None or (bias.shape in {(1, 1, 4, 3), (2, 1, 4, 3)} and bias.dtype == jnp.float32)
    assert values is None or (values.shape == (2, 4, 1, 8) and values.dtype == jnp.float32)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", POSITIONS)
def test_parts_of_queries_and_keys_make_up_the_whole(rng, name):
    module, params = make(rng, name)
    q, weights = rng.normal(size=(2, 5, HEADS, WIDTH)), rng.uniform(size=(2, HEADS, 5, 6))
    at_q, at_k = some_positions(rng, 2)

    params = jax.tree.map(jnp.asarray, params)

    def at(queries, keys):
        bias = module.apply({"params": params}, q[:, queries], at_q[:, queries], at_k[:, keys], method="bias")
        part = weights[:, :, queries, keys]
        return bias, module.apply({"params": params}, part, at_q[:, queries], at_k[:, keys], method="values")

    @jax.jit
    def parts():
        return at(slice(5), slice(6)), at(slice(1, 4), slice(4)), at(slice(1, 4), slice(4, 6))

    (bias, values), (left, left_values), (right, right_values) = parts()
    if bias is not None:
        np.testing.assert_allclose(np.concatenate([left, right], -1), bias[:, :, 1:4], atol=1e-5)
    if values is not None:
        np.testing.assert_allclose(left_values + right_values, values[:, 1:4], atol=1e-5)
