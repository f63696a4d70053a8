"""Every mixer whose state is a matrix for each head, against its equations token by token in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import test_incremental as incremental
from tests.layers import numpy_state
from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.mixers import MIXERS, chunked_state
from transformer.layers.mixers.base import SHARED
from transformer.layers.mixers.chunked_state import Tokens, advance
from transformer.layers.mixers.state_mixer import StateMixer
from transformer.models.decoder import DecoderConfig
from transformer.training import parallel
from transformer.training.state import State

STATES = [name for name, kind in MIXERS.items() if issubclass(kind, StateMixer)]
SIZES = {"num_heads": 4, "head_dim": 3, "norm_epsilon": numpy_state.EPSILON}
POSITIONS = np.array([[*range(6), *range(1), *range(4), *range(8)], [*range(19)]])
"""Two rows of 19 tokens; documents of the first have 6, 1, 4 and 8."""


@pytest.fixture
def small(monkeypatch):
    """Chunks of 8 tokens and blocks of 4, so that documents begin within both."""
    monkeypatch.setattr(chunked_state, "CHUNK", 8)
    monkeypatch.setattr(chunked_state, "BLOCK", 4)


def make(rng, name, **changes):
    """A mixer, its parameters and inputs (2, 19, 7)."""
    width = {"d_model": 7} if "d_model" in MIXERS[name].__dataclass_fields__ else {}
    mixer, x_btd = MIXERS[name](**SIZES | width | changes), np.float32(rng.normal(size=(2, 19, 7)))
    return mixer, random_params(rng, mixer, x_btd, positions_bt=POSITIONS), x_btd


def exact(x):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), x)


def near(a, b):
    """To some 1,500 roundings of the largest entry: 19 tokens by 12 to 20 products, twice, behind a norm."""
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(1, np.abs(b).max()))


CHANGES = [
    {},
    {"value_dim": 5, "num_key_heads": 2, "use_bias": True},
    {"num_key_heads": 1, "conv_width": 3},
    {"num_key_heads": 4, "conv_width": 1},
    {"negative_eigenvalues": True},
    {"use_bias": True},
]
CASES = [
    (name, changes)
    for name in STATES
    for changes in CHANGES
    if changes.keys() <= MIXERS[name].__dataclass_fields__.keys()
]


def forms(rng, name, changes):
    """Both forms as functions of parameters and inputs, to a scalar, outputs and states; and such inputs."""
    mixer, params, x_btd = make(rng, name, **changes)
    ahead_btd = np.float32(rng.normal(size=x_btd.shape))
    ahead_s = np.float32(rng.normal(size=mixer.empty_cache(2, 0)[0].shape))
    # What a layer before handed on; only rwkv7 reads it.
    first_bthv = np.float32(rng.normal(size=(2, 19, 4, 3)))

    def chunked(params, x_btd):
        variables = {"params": params, SHARED: {"first_values": first_bthv}}
        empty = mixer.empty_cache(2, 0)
        y, (state, _) = mixer.apply(variables, x_btd, positions_bt=POSITIONS, cache=empty)
        return jnp.sum(y * ahead_btd) + jnp.sum(state * ahead_s), (y, state)

    def stepwise(params, x_btd):
        inputs = zip(x_btd, POSITIONS, np.float64(first_bthv), strict=True)
        rows = [numpy_state.mixed(name, mixer, params, *row) for row in inputs]
        y, state = (jnp.stack(parts) for parts in zip(*rows, strict=True))
        return jnp.sum(y * ahead_btd) + jnp.sum(state * ahead_s), (y, state)

    return chunked, stepwise, (params, x_btd)


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("name", STATES)
def test_outputs_and_states_are_those_of_the_equations(rng, small, name):
    changes = {"value_dim": 5, "num_key_heads": 2, "use_bias": True}
    fields = MIXERS[name].__dataclass_fields__
    chunked, stepwise, inputs = forms(rng, name, {key: changes[key] for key in changes if key in fields})
    found = jax.jit(chunked)(*inputs)
    with jax.enable_x64(True):
        expected = jax.tree.map(np.asarray, jax.jit(stepwise)(*exact(inputs)))
    jax.tree.map(near, found, expected)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("name", "changes"), CASES)
def test_all_gradients_are_those_of_the_equations(rng, small, name, changes):
    chunked, stepwise, inputs = forms(rng, name, changes)
    found = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1), has_aux=True))(*inputs)
    with jax.enable_x64(True):
        function = jax.value_and_grad(stepwise, argnums=(0, 1), has_aux=True)
        expected = jax.tree.map(np.asarray, jax.jit(function)(*exact(inputs)))
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected))
    jax.tree.map(near, found, expected)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", STATES)
def test_chunks_and_blocks_of_any_size_give_the_same(rng, monkeypatch, name):
    mixer, params, x_btd = make(rng, name)

    def both(chunk, block):
        monkeypatch.setattr(chunked_state, "CHUNK", chunk)
        monkeypatch.setattr(chunked_state, "BLOCK", block)

        def loss(params, x_btd):
            y = mixer.apply({"params": params}, x_btd, positions_bt=POSITIONS)[0]
            return jnp.sum(jnp.sin(y)), y

        (_, y), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, x_btd)
        return y, gradient

    expected = both(1, 1)
    for sizes in ((3, 2), (12, 3), (16, 4), (64, 16)):
        jax.tree.map(near, both(*sizes), expected)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", STATES)
def test_nothing_passes_from_document_to_document(rng, small, name):
    """Not even a gradient: of the outputs of each document by the inputs of all others it is 0."""
    mixer, params, x_btd = make(rng, name)
    document_t = np.cumsum(POSITIONS[0] == 0)

    @jax.jit
    def gradient(weights_t):
        def loss(x_btd):
            y = mixer.apply({"params": params}, x_btd, positions_bt=POSITIONS)[0]
            return jnp.sum(jnp.sin(y[0]) * weights_t[:, None])

        return jax.grad(loss)(x_btd)

    for number in range(1, 5):
        of_inputs = np.asarray(gradient(np.float32(document_t == number)))
        assert not of_inputs[0, document_t != number].any() and not of_inputs[1].any()
        assert (np.abs(of_inputs[0, document_t == number]).max(axis=-1) > 0).all()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", STATES)
def test_any_parts_of_packed_rows_are_the_whole(rng, small, name):
    """Behind a prefill with documents in it: one token, three and many, across beginnings of documents."""
    mixer, params, x_btd = make(rng, name)
    step = jax.jit(lambda x, positions, cache: mixer.apply(
        {"params": params}, x, positions_bt=positions, cache=cache
    ))  # fmt: skip
    whole, last = step(x_btd, POSITIONS, mixer.empty_cache(2, 0))
    plain = jax.jit(lambda x: mixer.apply({"params": params}, x, positions_bt=POSITIONS))(x_btd)
    assert plain[1] is None
    np.testing.assert_allclose(plain[0], whole, atol=1e-5)
    cache, parts = mixer.empty_cache(2, 0), []
    for first, end in ((0, 8), (8, 9), (9, 12), (12, 13), (13, 19)):
        y, cache = step(x_btd[:, first:end], POSITIONS[:, first:end], cache)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), cache, last)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", STATES)
def test_beams_take_states_and_convolutions_with_them(rng, name):
    """Copies of prompts that grow, change places and read on have read their texts."""
    model, params = incremental.make(rng, mixer=name)
    tokens, lengths = incremental.prompts(rng, [5, 3])
    texts = [tokens[i, : lengths[i]].tolist() for i in (0, 1) for _ in range(3)]
    orders = [np.array([2, 0, 0, 4, 4, 3]), np.array([1, 2, 1, 5, 3, 3])]
    new_nb = rng.integers(0, incremental.VOCAB, (2, 6)).astype(np.int32)

    @jax.jit
    def run(stepper):
        _, cache = stepper.prefill(tokens, lengths, 1)
        cache, found = stepper.grow(stepper.repeat(cache, 3), 4), []
        for order, new_b in zip(orders, new_nb, strict=True):
            logits, cache = stepper.step(new_b, stepper.reorder(cache, order))
            found.append(logits)
        return found

    full = jax.jit(lambda padded: model.apply({"params": params}, padded)[..., : incremental.VOCAB])
    stepper = incremental.DecoderStepper.of(model, params)
    for logits, order, new_b in zip(run(stepper), orders, new_nb, strict=True):
        texts = [[*texts[row], int(new)] for row, new in zip(order, new_b, strict=True)]
        padded = np.stack([np.pad(text, (0, 8 - len(text))) for text in texts])
        expected = np.asarray(full(padded))[np.arange(6), [len(text) - 1 for text in texts]]
        np.testing.assert_allclose(logits, expected, atol=2e-4)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", STATES)
def test_bfloat16_errs_by_a_few_roundings(rng, name):
    """By at most four times what rounding inputs and parameters alone does, to first order: streams, their
    convolutions and the outputs of the recurrence are rounded too, and nothing in it is."""
    mixer, params, x_btd = make(rng, name)

    def output(mixer, params, x_btd):
        return mixer.apply({"params": params}, x_btd, positions_bt=POSITIONS)[0]

    apply = jax.jit(output, static_argnums=0)
    full = apply(mixer, params, x_btd)
    low = apply(mixer.clone(dtype="bfloat16"), params, jnp.bfloat16(x_btd))
    assert low.dtype == jnp.bfloat16
    step = 2.0**-8

    def moved(leaf):
        return leaf * np.float32(1 + step * rng.choice([-1, 1], leaf.shape))

    def error(y):
        return float(np.sqrt(np.mean(np.square(np.float32(y) - full))))

    by_inputs = max(error(apply(mixer, *jax.tree.map(moved, (params, x_btd)))) for _ in range(4))
    assert 0 < error(low) < 4 * by_inputs


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("kind", ["decay", "delta", "removal"])
def test_65536_tokens_with_decays_near_0_and_1(rng, kind, channels):
    """The state and the last outputs are those of float64; strong and weak decays stand side by side."""
    t, k = 65_536, 4
    q, key, v = (rng.normal(size=(t, k)) for _ in range(3))
    log_decay = -np.exp(rng.uniform(np.log(1e-6), np.log(100.0), (t, channels)))
    log_decay[-3000:] = -1e-6
    erase = key / np.linalg.norm(key, axis=-1, keepdims=True)
    write = erase * rng.uniform(0, 2, (t, 1))
    arrays = {"decay": (q, key, v, log_decay), "delta": (q, write, v, log_decay, erase),
              "removal": (q, key, v, log_decay, erase, write)}[kind]  # fmt: skip
    tokens = Tokens(*(jnp.float32(x)[None, :, None] for x in arrays))
    positions_1t = np.arange(t)[None]
    state, out = jax.jit(advance)(jnp.zeros((1, 1, k, k)), tokens, positions_1t)
    assert np.isfinite(out).all()
    arrays = [np.float64(x[0, :, 0]) for x in tokens if x is not None]
    q, key, v, log_decay = arrays[:4]
    expected, outputs = np.zeros((k, k)), np.zeros((t, k))
    for i in range(t):
        expected = np.exp(log_decay[i])[:, None] * expected
        added = np.outer(key[i], v[i])
        if len(arrays) > 4:
            added -= np.outer(arrays[-1 if kind == "removal" else 1][i], arrays[4][i] @ expected)
        expected = expected + added
        outputs[i] = q[i] @ expected
    # Sums of at most 64 logarithms of at most 100 are rounded, and hundreds of tokens are added up.
    np.testing.assert_allclose(state[0, 0], expected, atol=1e-3 * np.abs(expected).max())
    np.testing.assert_allclose(out[0, :, 0], outputs, atol=1e-3 * np.abs(outputs).max())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "axes", [{"fsdp": 2, "tensor": 2, "data": 1}, {"context": 2, "tensor": 4, "data": 1}], ids=str
)
@pytest.mark.parametrize("name", STATES)
def test_heads_rows_and_sequences_on_several_devices(rng, small, name, axes):
    config = DecoderConfig(d_model=16, num_layers=1, num_heads=4, d_ff=24, max_length=32, mixer=name)
    model = config.build(24)
    tokens = rng.integers(0, 24, (2, 20)).astype(np.int32)
    params = random_params(rng, model, tokens)
    boxed = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    mesh_config = parallel.MeshConfig(**axes)
    mesh = parallel.make_mesh(mesh_config, jax.devices()[: np.prod([*axes.values()])])
    rules = parallel.RULES["default"]
    state = State(jnp.int32(0), boxed, (), None, jnp.int32(0))
    shardings = parallel.state_shardings(state, mesh, rules).params
    rows = {
        "segments_bt": np.repeat([[1, 2], [1, 0]], [9, 11], axis=1),
        "positions_bt": np.r_[0:9, 0:11][None].repeat(2, 0),
    }

    def loss(params):
        return jnp.mean(jnp.sin(model.apply({"params": params}, tokens, **rows)))

    expected = jax.jit(jax.value_and_grad(loss))(params)
    value = params["blocks"]["attention"]["value"]["kernel"]
    with parallel.placed(mesh, rules):
        divided = jax.device_put(params, shardings)
        kernel = divided["blocks"]["attention"]["value"]["kernel"]
        assert kernel.addressable_shards[0].data.shape[2] == value.shape[2] // axes["tensor"]
        found = jax.jit(jax.value_and_grad(loss))(divided)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected)


@pytest.mark.parametrize("name", [name for name in STATES if name != "rwkv7"])
def test_convolutions_and_key_heads_are_those_of_the_papers(rng, name):
    """And every projection has a bias where all have."""
    mixer, params, _ = make(rng, name, use_bias=True)
    assert mixer.taps == (1 if name == "gated_linear" else 4)
    assert mixer.key_heads == (1 if name == "mamba2" else 4)
    for part in ("query", "key", "value"):
        assert (f"{part}_convolution" in params) == (name != "gated_linear")
        assert ("bias" in params.get(f"{part}_convolution", {})) == (name == "mamba2")
    kernels = [part for part, value in params.items() if isinstance(value, dict) and "kernel" in value]
    projections = [params[part] for part in kernels if "_convolution" not in part]
    assert all("bias" in value for value in projections) and len(projections) >= 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "gated_delta", "num_key_heads": 3}, r"num_key_heads: 3 does not divide num_heads 4"),
        ({"conv_width": 4}, r"conv_width: 4 with mixer 'multi_head', only with 'gated_linear', 'mamba2'"),
        (
            {"mixer": "mamba2", "negative_eigenvalues": True},
            r"negative_eigenvalues: True with mixer 'mamba2', only with 'delta', 'gated_delta', 'kimi_delta'",
        ),
        ({"mixer": "delta", "pattern": "window"}, r"pattern: 'window' with mixer 'delta', only with"),
    ],
)
def test_what_mixers_do_not_have_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(DecoderConfig(), **changes)


def test_only_layers_that_are_there_have_attention():
    """A stack of one layer has the first kind alone, which has no weights to plot and no cache to round."""
    kinds = {"layers": ("delta", "full"), "layer_kinds": {"delta": {"mixer": "gated_delta"}, "full": {}}}
    assert [DecoderConfig(num_layers=n, **kinds).has_attention for n in (1, 2)] == [False, True]
