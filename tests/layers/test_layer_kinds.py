"""Stacks of layers of several kinds, recurrent ones among them: one function however it is run."""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.decoding import test_incremental as incremental
from tests.parameters import random_params
from transformer.config import from_values
from transformer.errors import UserError
from transformer.layers.linear import Linear
from transformer.layers.mixers import MIXERS, Mixer
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.transformer_xl import TransformerXLConfig

CONFIG = DecoderConfig(d_model=16, num_layers=4, num_heads=2, d_ff=24, max_length=32)
WINDOWS = {
    "layers": ("window", "window", "full", "window"),
    "layer_kinds": {"window": {"pattern": "window", "pattern_size": 3}, "full": {"position": "none"}},
}
TREES = {
    "layers": ("narrow", "average"),
    "layer_kinds": {"narrow": {"num_kv_heads": 1}, "average": {"mixer": "moving_average", "d_ff": 12}},
}


class MovingAverage(Mixer):
    """y = W h with h_t = a h_(t-1) + (1 - a) V x_t, a = sigmoid(decay); h starts at 0 in each document."""

    @nn.compact
    def __call__(self, x_btd, *, positions_bt, cache=None, **_):
        width = x_btd.shape[-1]
        linear = {"names": ("embed", "heads"), "use_bias": False, "dtype": self.dtype}
        init = nn.with_logical_partitioning(nn.initializers.normal(1.0), ("heads",))
        decay_d = jax.nn.sigmoid(self.param("decay", init, (width,), jnp.float32))
        decay_btd = jnp.where(positions_bt[..., None] == 0, 0.0, decay_d)
        h_btd = (1 - decay_d) * Linear((width,), name="value", **linear)(x_btd)
        if cache is not None:
            h_btd = h_btd.at[:, 0].add(decay_btd[:, 0] * cache)

        def compose(first, second):
            return first[0] * second[0], first[1] * second[0] + second[1]

        _, h_btd = jax.lax.associative_scan(compose, (decay_btd, h_btd), axis=1)
        y_btd = Linear((width,), name="output", **linear)(h_btd.astype(self.dtype))
        return y_btd, None if cache is None else h_btd[:, -1]

    def empty_cache(self, rows, slots):
        return jnp.zeros((rows, CONFIG.d_model))


@pytest.fixture(autouse=True)
def with_moving_average(monkeypatch):
    monkeypatch.setitem(MIXERS, "moving_average", MovingAverage)


def make(rng, **changes):
    model = Decoder(dataclasses.replace(CONFIG, **changes), 23)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


@pytest.mark.thorough
@pytest.mark.parametrize("kinds", [WINDOWS, TREES])
def test_decoding_is_the_sequence_form(rng, kinds):
    incremental.check_steps(rng, *make(rng, **kinds))


@pytest.mark.thorough
@pytest.mark.parametrize("kinds", [WINDOWS, TREES])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_and_rematerialised_are_the_same_function(rng, kinds, remat):
    model, params = make(rng, **kinds)
    other = Decoder(dataclasses.replace(model.config, scan_layers=True, remat=remat), 23)
    tokens = rng.integers(0, 23, (2, 9))

    def loss(params, model):
        return jnp.sum(jnp.sin(model.apply({"params": params}, tokens)))

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    found, expected = gradient(params, other), gradient(params, model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("num_layers", [1, 3, 5])
@pytest.mark.parametrize("kinds", [WINDOWS, TREES])
def test_any_number_of_layers_is_scanned(rng, kinds, num_layers):
    """Also one that is not a multiple of the number of `layers`, with dropout and what blocks sow."""
    model, params = make(rng, **kinds, num_layers=num_layers, dropout=0.2, remat="full")
    other = Decoder(dataclasses.replace(model.config, scan_layers=True), 23)
    tokens = rng.integers(0, 23, (2, 9))

    def loss(params, model):
        options = {"train": True, "rngs": {"dropout": jax.random.key(1)}, "mutable": "intermediates"}
        logits, sown = model.apply({"params": params}, tokens, **options)
        return jnp.mean(jnp.sin(logits)), sown["intermediates"]["blocks"][0]

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    found, expected = gradient(params, other), gradient(params, model)
    assert len(found[0][1]) == num_layers
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("encoder", [1, 3])
def test_an_encoder_may_have_another_number_of_layers(rng, encoder):
    changes = {"num_layers": 4, "num_encoder_layers": encoder, "d_model": 16, "num_heads": 2, "d_ff": 24}
    config = EncoderDecoderConfig(**changes, **TREES)
    source, tokens = rng.integers(0, 23, (2, 5)), rng.integers(0, 23, (2, 4))
    model, scanned = config.build(23), dataclasses.replace(config, scan_layers=True).build(23)
    params = random_params(rng, model, source, tokens)
    found, expected = (jax.jit(each.apply)({"params": params}, source, tokens) for each in (scanned, model))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_layers_are_what_a_loop_over_them_gives(rng):
    """Each layer runs with its own parameters and its own pattern, in order."""
    model, params = make(rng, **TREES)
    stack = model.config.stack(causal=True)
    layers = stack.unstack(params["blocks"])
    for i, layer in enumerate(layers):
        kind, at = TREES["layers"][i % 2], operator.itemgetter(i // 2)
        jax.tree.map(np.testing.assert_array_equal, layer, jax.tree.map(at, params["blocks"][kind]))
    assert [type(mixer).__name__ for mixer in stack.mixers] == ["MultiHeadAttention", "MovingAverage"] * 2


def test_kinds_with_the_same_parameters_share_one_tree(rng):
    _, params = make(rng, **WINDOWS)
    plain, _ = make(rng)
    expected = jax.eval_shape(plain.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    assert jax.tree.structure(params) == jax.tree.structure(nn.unbox(expected))
    _, params = make(rng, **TREES)
    shapes = {kind: jax.tree.leaves(tree)[0].shape[0] for kind, tree in params["blocks"].items()}
    assert shapes == {"narrow": 2, "average": 2}
    assert {"decay", "value", "output"} == params["blocks"]["average"]["attention"].keys()


@pytest.mark.thorough
def test_packed_documents_do_not_see_one_another(rng):
    model, params = make(rng, **TREES)
    tokens = rng.integers(0, 23, (1, 8))
    segments, positions = np.array([[1, 1, 1, 2, 2, 2, 2, 2]]), np.array([[0, 1, 2, 0, 1, 2, 3, 4]])
    apply = jax.jit(model.apply)
    both = apply({"params": params}, tokens, segments_bt=segments, positions_bt=positions)
    alone = apply({"params": params}, tokens[:, 3:])
    np.testing.assert_allclose(both[:, 3:], alone, atol=1e-4)


@pytest.mark.thorough
def test_beams_take_their_states_with_them(rng):
    model, params = make(rng, **TREES)
    stepper = incremental.DecoderStepper.of(model, params)
    tokens, lengths = incremental.prompts(rng, [3, 5])
    order, new = np.array([1, 1, 2, 3]), rng.integers(0, 23, 4).astype(np.int32)

    @jax.jit
    def last(first, order):
        _, cache = stepper.prefill(tokens, lengths, 4)
        _, cache = stepper.step(first, stepper.repeat(cache, 2))
        return stepper.step(new, stepper.reorder(cache, order))[0]

    first = rng.integers(0, 23, 4).astype(np.int32)
    got, expected = last(first, order), last(first[order], np.arange(4))
    np.testing.assert_allclose(got, expected, atol=1e-4)
    with pytest.raises(UserError, match="no token can be taken back from the state of a recurrent layer"):
        stepper.prefill(tokens, lengths, 4, rewound=2)


@pytest.mark.thorough
def test_encoder_decoders_and_memory_have_kinds_too(rng):
    config = EncoderDecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24, **TREES)
    model = config.build(23)
    source, tokens = rng.integers(0, 23, (2, 5)), rng.integers(0, 23, (2, 4))
    params = random_params(rng, model, source, tokens)
    stepper = model.stepper(params, int(tokens[0, 0]))
    tokens[:, 0] = tokens[0, 0]
    full = jax.jit(model.apply)({"params": params}, source, tokens)[..., :23]
    logits, cache = jax.jit(lambda: stepper.prefill(source, np.array([5, 5]), 4))()
    np.testing.assert_allclose(logits, full[:, 0], atol=2e-4)
    step = jax.jit(stepper.step)
    for i in range(1, 4):
        logits, cache = step(tokens[:, i], cache)
        np.testing.assert_allclose(logits, full[:, i], atol=2e-4)
    windows = WINDOWS | {"layers": ("window", "full")}
    assert [mixer.reach for mixer in TransformerXLConfig(**windows).stack().mixers] == [3, None] * 2
    with pytest.raises(UserError, match=r"^layer_kinds\.average\.mixer: a recurrent mixer"):
        TransformerXLConfig(**TREES)


def one_kind(**keys):
    return {"layers": ["a"], "layer_kinds": {"a": keys}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ["wide"]}, r"model.layers: 'wide' is not a kind of layer_kinds; define it there"),
        ({"layer_kinds": {"wide": {}}}, r"model.layer_kinds.wide: no layer is of this kind"),
        (one_kind(d_model=8), r"layer_kinds.a.d_model: not a key of one layer"),
        (one_kind(patern="full"), r"layer_kinds.a.patern: .* did you mean 'pattern'\?"),
        (one_kind(pattern_size="3"), r"layer_kinds.a.pattern_size: '3' \(str\); expected int"),
        (one_kind(pattern_size=3), r"layer_kinds.a.pattern_size: 3 does nothing with pattern 'full'"),
        (one_kind(position="learned"), r"layer_kinds.a.position: 'learned' is added to embeddings"),
        (one_kind(mixer="latent", qk_norm=True), r"layer_kinds.a.qk_norm: True with mixer 'latent'"),
        (
            {"mixer": "latent", "qk_norm": True},
            r"qk_norm: True with mixer 'latent', only with 'multi_head'",
        ),
        (
            {"mixer": "moving_average", "sinks": True},
            r"sinks: True with mixer 'moving_average', only with 'multi",
        ),
    ],
)
def test_what_layers_cannot_be_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        from_values(DecoderConfig, changes, "config.model")


def test_a_kind_leaves_what_its_mixer_and_position_do_not_have():
    changes = {"position_scaling": "linear", "position_factor": 2.0, "qk_norm": True}
    kinds = {"layers": ("a", "b"), "layer_kinds": {"a": {}, "b": {"mixer": "latent", "position": "none"}}}
    config = dataclasses.replace(CONFIG, **changes, **kinds)
    assert config.kinds["a"].qk_norm and not config.kinds["b"].qk_norm
    assert config.kinds["b"].position_factor == 1.0


def test_a_kind_is_not_named_as_a_part_of_a_layer():
    """Their parameters could not be told apart."""
    with pytest.raises(UserError, match=r"layer_kinds\.feed_forward: parameters of a part"):
        dataclasses.replace(CONFIG, layers=("feed_forward",), layer_kinds={"feed_forward": {}})
