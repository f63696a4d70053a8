"""Adapters: the same function as a model whose kernels were changed by matrices of low rank."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import traverse_util
from jax.tree_util import keystr, tree_leaves_with_path

from tests.decoding import test_incremental as incremental
from tests.parameters import random_params, roles_by_name
from transformer.config import from_values, refuse_idle
from transformer.decoding.generation import generate
from transformer.errors import UserError
from transformer.models.classifier import ClassifierConfig, TextClassifier
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.transformer_xl import Memory, TransformerXLConfig
from transformer.models.vision import VisionConfig, VisionTransformer
from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer

VOCAB = 23
SMALL = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 24, "lora_rank": 3, "lora_alpha": 6.0}
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)
EVERYWHERE = ".*"
LATENT = ("latent", "output", "query", "rotary_key", "rotary_query")
DECODERS = {
    "decoder": {"use_bias": True},
    "scanned": {"scan_layers": True, "remat": "full", "num_kv_heads": 1},
    "everywhere": {"lora_layers": EVERYWHERE, "feed_forward": "swiglu", "remat": "dots"},
    "latent": {"mixer": "latent", "lora_layers": "attention/"},
    "kinds": {
        "layers": ("narrow", "none"),
        "layer_kinds": {"narrow": {"num_kv_heads": 1}, "none": {"mixer": "plain"}},
    },
}


def decoder(**keys):
    return Decoder(DecoderConfig(**SMALL, **keys), VOCAB)


def classifier(**keys):
    return TextClassifier(ClassifierConfig(**SMALL, **keys), VOCAB, 2)


MODELS = {
    **{name: (decoder(**keys), (TOKENS,)) for name, keys in DECODERS.items()},
    "encoder": (classifier(), (TOKENS, np.ones_like(TOKENS), 1)),
    "encoder_decoder": (EncoderDecoderConfig(**SMALL, num_kv_heads=1).build(VOCAB), (TOKENS, TOKENS[:, :4])),
    "vision": (VisionTransformer(VisionConfig(**SMALL, lora_layers="up|down"), 2), (np.ones((2, 4, 4, 1)),)),
}


def merged(params, scale=2.0):
    """The parameters of the model without adapters: kernel + (alpha / r) down . up, in float64."""
    if "lora_down" in params:
        down, up = (np.asarray(params[name]["kernel"], np.float64) for name in ("lora_down", "lora_up"))
        if down.shape[0] == up.shape[0] == SMALL["num_layers"]:
            change = np.stack([np.tensordot(a, b, 1) for a, b in zip(down, up, strict=True)])
        else:  # of one layer of a kind
            change = np.tensordot(down[0], up[0], 1)[None]
        kernel = np.asarray(params["kernel"], np.float64) + scale * change
        others = {name: value for name, value in params.items() if not name.startswith("lora")}
        return others | {"kernel": jnp.asarray(kernel, jnp.float32)}
    return {name: merged(value) if isinstance(value, dict) else value for name, value in params.items()}


def without_adapters(model):
    return model.clone(config=dataclasses.replace(model.config, lora_rank=0))


def adapters(params):
    """The paths of the layers that have them."""
    paths = [keystr(path, simple=True, separator="/") for path, _ in tree_leaves_with_path(params)]
    return sorted(path.removesuffix("/lora_up/kernel") for path in paths if path.endswith("lora_up/kernel"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_adapters_are_a_change_of_the_kernels_that_begins_as_none(rng, name):
    model, inputs = MODELS[name]
    plain = without_adapters(model)

    def init(model):
        return nn.meta.unbox(model.init(jax.random.key(0), *inputs))["params"]

    fresh = jax.jit(init, static_argnums=0)(model)
    assert jax.tree.structure(merged(fresh)) == jax.tree.structure(jax.eval_shape(lambda: init(plain)))
    apply = jax.jit(lambda model, params: model.apply({"params": params}, *inputs), static_argnums=0)
    np.testing.assert_array_equal(apply(model, fresh), apply(plain, merged(fresh)))
    params = random_params(rng, model, *inputs)
    got = apply(model, params)
    np.testing.assert_allclose(got, apply(plain, merged(params)), rtol=1e-3, atol=1e-3)
    others = jax.tree_util.tree_map_with_path(lambda path, x: x * ("lora" not in keystr(path)), params)
    assert np.abs(got - apply(model, others)).max() > 1e-2


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("decoder", ["blocks/attention/query", "blocks/attention/value"]),
        ("latent", [f"blocks/attention/{name}" for name in LATENT]),
        ("kinds", ["blocks/narrow/attention/query", "blocks/narrow/attention/value"]),
        (
            "encoder_decoder",
            [
                "decoder_blocks/attention/query",
                "decoder_blocks/attention/value",
                "decoder_blocks/cross_attention/query",
                "decoder_blocks/cross_attention/value",
                "encoder_blocks/attention/query",
                "encoder_blocks/attention/value",
            ],
        ),
        ("vision", ["trunk/blocks/feed_forward/down", "trunk/blocks/feed_forward/up"]),
    ],
)
def test_an_expression_says_which_layers_have_them(rng, name, expected):
    model, inputs = MODELS[name]
    assert adapters(random_params(rng, model, *inputs)) == expected


def test_their_axes_have_the_names_of_the_kernel_s():
    model = decoder(lora_layers="output")
    names = nn.get_partition_spec(jax.eval_shape(model.init, jax.random.key(0), TOKENS))
    output = names["params"]["blocks"]["attention"]["output"]
    assert tuple(output["lora_down"]["kernel"]) == ("layers", "heads", "head_dim", "replicated")
    assert tuple(output["lora_up"]["kernel"]) == ("layers", "replicated", "embed")


@pytest.mark.thorough
@pytest.mark.parametrize("name", DECODERS)
def test_decoding_with_a_cache_is_the_full_pass(rng, name):
    incremental.check_steps(rng, *incremental.make(rng, lora_rank=3, lora_alpha=6.0, **DECODERS[name]))


@pytest.mark.thorough
def test_translations_are_those_of_the_merged_model(rng):
    model, inputs = MODELS["encoder_decoder"]
    params = random_params(rng, model, *inputs)

    def translate(model, params):
        rngs = jax.random.split(jax.random.key(0), 2)
        return generate(model.stepper(params, 1), inputs[0], np.array([5, 3]), rngs, max_new_tokens=4)[0]

    np.testing.assert_array_equal(
        translate(model, params), translate(without_adapters(model), merged(params))
    )


@pytest.mark.thorough
def test_memory_is_read_with_them(rng):
    model = TransformerXLConfig(**SMALL, memory_length=8).build(VOCAB)
    params = random_params(rng, model, TOKENS)

    def read(model, params):
        memory = Memory.empty(model.config, 2, 8)
        for part in (TOKENS[:, :3], TOKENS[:, 3:]):
            segments = np.ones_like(part)
            variables = {"params": params}
            x_btd, memory = model.apply(variables, part, memory, segments_bt=segments, method="recur")
        return x_btd

    expected = read(without_adapters(model), merged(params))
    np.testing.assert_allclose(read(model, params), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.thorough
def test_in_half_precision_they_are_as_close_as_its_rounding(rng):
    model = decoder(dtype="bfloat16", lora_layers=EVERYWHERE)
    params = random_params(rng, model, TOKENS, scale=0.1)
    got, expected = (
        model.apply({"params": params}, TOKENS),
        decoder(lora_layers=EVERYWHERE).apply({"params": params}, TOKENS),
    )
    np.testing.assert_allclose(got[..., :VOCAB], expected[..., :VOCAB], atol=0.03)


@pytest.mark.thorough
def test_the_first_step_of_training_them_alone_moves_them_alone(rng):
    """The first matrix is drawn and the second zero, so that one of the two has a gradient."""
    model, inputs = MODELS["decoder"]
    params = nn.meta.unbox(jax.jit(model.init)(jax.random.key(0), *inputs))["params"]
    config = OptimizerConfig(learning_rate=0.1, train_only="lora", schedule="constant", warmup_steps=0)
    optimizer, _ = make_optimizer(config, 10, roles=roles_by_name)

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda p: jnp.square(model.apply({"params": p}, *inputs)[..., :VOCAB]).mean())
        updates, state = optimizer.update(gradient(params), state, params)
        return optax.apply_updates(params, updates), state

    moved, _ = step(params, optimizer.init(params))
    for (path, new), old in zip(tree_leaves_with_path(moved), jax.tree.leaves(params), strict=True):
        assert bool(jnp.any(new != old)) == ("lora_up" in keystr(path) or "lora_down" in keystr(path)), path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lora_rank": 2, "lora_layers": "("},
            r"^config.lora_layers: '\(' is not a regular expression: missing \)",
        ),
        (
            {"lora_rank": 2, "lora_layers": "valeu"},
            r"^config.lora_rank: 2 does nothing with lora_layers 'valeu', which is found in none of "
            r"attention/key, attention/output, attention/query, attention/value, feed_forward/down, "
            r"feed_forward/up; leave it at 0$",
        ),
        (
            {"lora_layers": "key"},
            r"^config.lora_layers: 'key' does nothing with lora_rank 0; leave it at",
        ),
        ({"lora_alpha": 8.0}, r"^config.lora_alpha: 8.0 does nothing with lora_rank 0; leave it at 16"),
        ({"lora_rank": 2, "mixer": "plain"}, r"^config.lora_rank: 2 does nothing with lora_layers"),
        ({"lora_rank": 2, "lora_layers": "cross"}, r"^config.lora_rank: 2 does nothing"),
    ],
)
def test_adapters_of_nothing_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        refuse_idle(from_values(DecoderConfig, changes))


def test_those_of_one_side_are_adapters_of_something():
    config = from_values(EncoderDecoderConfig, SMALL | {"lora_layers": "cross_attention/key"})
    refuse_idle(config)
    one = jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(lambda: config.build(8).init(jax.random.key(0), one, one))["params"]
    paths = traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    assert {path.rpartition("/lora_")[0] for path in paths if "/lora_" in path} == {
        "decoder_blocks/cross_attention/key"
    }
