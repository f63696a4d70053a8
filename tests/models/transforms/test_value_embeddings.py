"""Value embeddings, beside what tests/layers/attention/test_attention_exact.py and tests of decoding
show."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import numpy_decoder
from tests.parameters import random_params, roles_by_name
from transformer.errors import UserError
from transformer.models.decoder import DecoderConfig, DecoderStepper
from transformer.models.transformer_xl import Memory, TransformerXLConfig
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.optim.parametrization import scales
from transformer.training.optim.rules import parameter_settings
from transformer.training.parallel import is_boxed

SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 4, "d_ff": 12, "max_length": 32}
CONFIG = DecoderConfig(**SIZES, num_kv_heads=2, value_embeddings=(0, -1))
VOCAB = 19


@pytest.mark.thorough
def test_initially_a_model_is_almost_the_one_without(rng):
    """Its other parameters are the same, by the same seed."""
    tokens = rng.integers(0, VOCAB, (2, 7))
    models = [config.build(VOCAB) for config in (CONFIG, dataclasses.replace(CONFIG, value_embeddings=()))]
    (valued, plain), (more, params) = zip(
        *[(m, nn.meta.unbox(jax.jit(m.init)(jax.random.key(3), tokens)["params"])) for m in models],
        strict=True,
    )
    table, scale = (more["value_embedding"][name] for name in ("table", "scale"))
    del more["value_embedding"]
    assert table.shape == (128, 2 * 2 * 4) and 0.01 < table.std() < 0.03 and (scale == 1).all()
    jax.tree.map(np.testing.assert_array_equal, more, params)
    none = {**params, "value_embedding": {"table": 0 * table, "scale": scale}}
    expected = jax.jit(plain.apply)({"params": params}, tokens)
    np.testing.assert_array_equal(jax.jit(valued.apply)({"params": none}, tokens), expected)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("skips", [False, True])
def test_against_numpy(rng, skips):
    """And read a token at a time."""
    config = dataclasses.replace(CONFIG, head_dim=4, skips=skips)
    model, tokens = config.build(VOCAB), rng.integers(0, VOCAB, (1, 5))
    params = random_params(rng, model, tokens)
    expected = numpy_decoder.decoder(numpy_decoder.exact(params), config, tokens[0])[:, :VOCAB]
    found = jax.jit(model.apply)({"params": params}, tokens)[0, :, :VOCAB]
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)
    stepper = DecoderStepper.of(model, params)

    @jax.jit
    def read():
        first, cache = stepper.prefill(tokens[:, :3], np.array([3]), 2)
        return first, stepper.extend(tokens[:, 3:], cache)[0]

    first, others = read()
    np.testing.assert_allclose(jnp.concatenate([first, others[0]]), expected[2:], atol=2e-5, rtol=2e-5)


def test_they_are_added_in_the_order_in_which_layers_are_named(rng):
    """To layers with different numbers of heads."""
    kinds = {"layers": ("two", "one"), "layer_kinds": {"two": {}, "one": {"num_kv_heads": 1}}}
    tokens = rng.integers(0, VOCAB, (2, 7))
    first, second = (
        dataclasses.replace(CONFIG, value_embeddings=chosen, **kinds).build(VOCAB)
        for chosen in ((0, 1), (1, 0))
    )
    params = random_params(rng, first, tokens)
    table, scale = (params["value_embedding"][name] for name in ("table", "scale"))
    assert table.shape == (128, 2 * 4 + 4)
    turned = {"table": jnp.roll(table, 4, axis=1), "scale": scale[::-1]}
    found = second.apply({"params": params | {"value_embedding": turned}}, tokens)
    np.testing.assert_array_equal(found, first.apply({"params": params}, tokens))


@pytest.mark.thorough
@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_and_rematerialised_are_the_same_function(rng, remat):
    model, tokens = CONFIG.build(VOCAB), rng.integers(0, VOCAB, (2, 7))
    other = dataclasses.replace(CONFIG, scan_layers=True, remat=remat).build(VOCAB)
    params = random_params(rng, model, tokens)

    def value_and_gradient(model):
        def value(params):
            return jnp.sum(jnp.sin(model.apply({"params": params}, tokens)[..., :VOCAB]))

        return jax.jit(jax.value_and_grad(value))(params)

    expected, found = value_and_gradient(model), value_and_gradient(other)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), found, expected)
    assert np.abs(found[1]["value_embedding"]["scale"]).min() > 1e-3


KINDS = {"layers": ("heads", "latent"), "layer_kinds": {"heads": {}, "latent": {"mixer": "latent"}}}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("changes", [{"position": "transformer_xl"}, {"position": "rope", **KINDS}])
def test_segments_with_memory_are_the_whole_text(rng, changes):
    config = TransformerXLConfig(**SIZES, **changes, memory_length=8, value_embeddings=(2, 0))
    model, tokens = config.build(VOCAB), rng.integers(0, VOCAB, (2, 8))
    segments = 1 + np.sort(rng.integers(0, 2, (2, 8)), axis=1)
    variables = {"params": random_params(rng, model, tokens)}
    memory, states, apply = Memory.empty(config, 2, 8), [], jax.jit(model.apply, static_argnames="method")
    for part in (slice(0, 4), slice(4, 8)):
        inputs = {"segments_bt": segments[:, part], "method": "recur"}
        x_btd, memory = apply(variables, tokens[:, part], memory, **inputs)
        states.append(x_btd)
    whole = apply(variables, tokens, segments_bt=segments, method="hidden")
    np.testing.assert_allclose(jnp.concatenate(states, axis=1), whole, atol=2e-4)


@pytest.mark.parametrize(("changes", "says"), [
    ({"value_embeddings": (3,)}, r"\(3,\); expected different layers of 0 to 2, -1 for the last"),
    ({"value_embeddings": (-4,)}, "expected different layers of 0 to 2"),
    ({"value_embeddings": (2, -1)}, "expected different layers"),
    ({"mixer": "latent", "num_kv_heads": 0}, "the mixer of layer 0 is not 'multi_head'"),
    ({"layers": ("heads", "sums"), "layer_kinds": {"heads": {}, "sums": {"mixer": "linear"}},
      "value_embeddings": (2, 1)}, "the mixer of layer 1 is not 'multi_head'"),
])  # fmt: skip
def test_what_cannot_have_them_is_refused(changes, says):
    with pytest.raises(UserError, match=says):
        dataclasses.replace(CONFIG, **changes).stack()


def test_rules_take_them_for_embeddings_of_tokens():
    """What is below the first block is frozen with it, and the decay of token embeddings is theirs too."""
    made = jax.eval_shape(lambda: CONFIG.build(VOCAB).init(jax.random.key(0), jnp.zeros((1, 1), int)))
    params, keys = nn.meta.unbox(made)["params"], {"frozen_layers": 1, "embedding_weight_decay": 0.25}
    found = parameter_settings(params, OptimizerConfig(**keys), roles=roles_by_name)
    assert found["value_embedding"] == found["embedding"] | {"scale": found["value_embedding"]["scale"]}
    assert found["value_embedding"]["table"].weight_decay == 0.25
    assert found["value_embedding"]["scale"].frozen and not found["final_norm"]["scale"].frozen


@pytest.mark.parametrize(("kind", "step"), [("adam", 1), ("sgd", 2)])
@pytest.mark.parametrize("scale_embeddings", [False, True])
def test_in_wider_models_they_are_scaled_as_embeddings_are(kind, step, scale_embeddings):
    """Those without `scale_embeddings`: what they are added to is as large in every width."""
    mup = {"parametrization": "mup", "base_width": 8, "head_dim": 4, "num_heads": 4}
    config = dataclasses.replace(CONFIG, **mup, scale_embeddings=scale_embeddings)
    made = jax.eval_shape(lambda: config.build(VOCAB).init(jax.random.key(0), jnp.zeros((1, 1), int)))
    boxes = {"value_embedding": made["params"]["value_embedding"]}
    found = jax.tree_util.tree_leaves_with_path(boxes, is_leaf=is_boxed)
    assert [dataclasses.astuple(scales(path, box, config, kind)) for path, box in found] == [
        (1, 1),
        (1, step),
    ]
