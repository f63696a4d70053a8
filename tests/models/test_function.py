"""Which keys of a model the function of given parameters depends on: every key, changed to other values."""

import dataclasses
import typing
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.parameters import random_params
from transformer.config import OneOf, bounds_of
from transformer.errors import UserError
from transformer.models.classifier import ClassifierConfig, TextClassifier
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import HeadConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.masked_lm import MaskedLanguageModel
from transformer.models.model_config import ModelConfig
from transformer.models.recurrent import RecurrentConfig
from transformer.models.transformer_xl import TransformerXLConfig
from transformer.models.vectors import VectorConfig, VectorTransformer
from transformer.models.vision import VisionConfig, VisionTransformer
from transformer.models.word_embedding import SkipGram, SkipGramConfig

VOCAB, ROWS, LENGTH = 24, 2, 12  # without padding, whose logits are huge
SMALL = {"d_model": 16, "num_heads": 4, "d_ff": 24, "vocab_multiple": 8}
STACK = SMALL | {"num_layers": 2, "max_length": 32}
NO_TEXT = {key: value for key, value in STACK.items() if key != "vocab_multiple"}
LORA = {"lora_rank": 2, "lora_layers": "."}
YARN = {"position_scaling": "yarn", "position_factor": 2.0, "position_base": 100.0}
KINDS = {
    "layers": ("near", "far"),
    "layer_kinds": {"near": {"pattern": "window", "pattern_size": 3}, "far": {}},
}

BASES: dict[str, ModelConfig] = {
    "rotary": DecoderConfig(**STACK | YARN | LORA, num_kv_heads=2, soft_cap=5.0, qk_norm=True),
    "window": DecoderConfig(**STACK, pattern="window", pattern_size=3, logit_soft_cap=9.0, qkv_bias=True),
    "blocks": DecoderConfig(
        **STACK, pattern="blocks", pattern_size=4, position="shaw", feed_forward="swiglu"
    ),
    "experts": DecoderConfig(
        **STACK,
        num_experts=4,
        position="learned",
        use_bias=True,
        norm="layer",
        shared_d_ff=8,
        shared_gate=True,
    ),
    "biases": DecoderConfig(**STACK, position="t5", scale_logits=True, output_bias=True, sinks=True),
    "added": DecoderConfig(**STACK, position="sinusoidal", position_rms=0.3, embedding_rms=0.7),
    "latent": DecoderConfig(**STACK, mixer="latent", norm_placement="sandwich", scale_embeddings=True),
    "deep": DecoderConfig(**STACK, parametrization="mup", base_width=8, base_head_dim=2, base_layers=1),
    "kinds": DecoderConfig(**STACK | YARN | KINDS, position_original_length=8),
    "values": DecoderConfig(**STACK, value_embeddings=(0,), position_fraction=0.5),
    "memory": TransformerXLConfig(**STACK),
    "beside": DecoderConfig(**STACK, parallel_sublayers=True),
    "pairs": EncoderDecoderConfig(**STACK, num_encoder_layers=1),
    "masked": HeadConfig(**STACK, position="learned", embedding_norm=True),
    "classes": ClassifierConfig(**STACK, pooler="masked_lm", num_token_types=1, token_type_bias=True),
    "images": VisionConfig(**NO_TEXT, use_bias=True),
    "vectors": VectorConfig(**NO_TEXT, projections=False),
    "recurrent": RecurrentConfig(d_model=16, num_layers=1, vocab_multiple=8),
    "words": SkipGramConfig(d_model=16, vocab_multiple=8),
}
"""Configs with an effect of each key in one of them."""

OTHERS = {"layers": [()], "value_embeddings": [(1,), ()], "lora_layers": ["query"]}
"""Other values of keys whose bounds do not say them."""


def model_of(config) -> Callable:
    """(rng) -> (module, its inputs)."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH))
    ones = jnp.ones((ROWS, LENGTH), jnp.int32)
    match config:
        case ClassifierConfig():
            return TextClassifier(config, VOCAB, 3), (tokens, ones, 1)
        case HeadConfig():
            return MaskedLanguageModel(config, VOCAB), (tokens, ones[:, :3] * 2)
        case VisionConfig():
            images = np.random.default_rng(0).integers(0, 255, (ROWS, 8, 8, 1))
            return VisionTransformer(config, 3), (images,)
        case VectorConfig():
            vectors = np.random.default_rng(0).normal(size=(ROWS, LENGTH, config.d_model))
            return VectorTransformer(config), (jnp.asarray(vectors, jnp.float32),)
        case SkipGramConfig():
            return SkipGram(config, VOCAB), (tokens, tokens[:, :2])
        case EncoderDecoderConfig() | RecurrentConfig():
            return config.build(VOCAB), (tokens, tokens)
    return config.build(VOCAB), (tokens,)


def shapes_of(config) -> dict:
    module, inputs = model_of(config)
    made = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))["params"]
    return {path: leaf.value.shape for path, leaf in traverse_util.flatten_dict(made, sep="/").items()}


def outputs(config, params) -> np.ndarray:
    module, inputs = model_of(config)
    found = jax.tree.leaves(module.apply({"params": params}, *inputs))
    return np.concatenate([np.ravel(np.asarray(x, np.float32)) for x in found])


def other_values(config, key: str) -> Iterator:
    """Values that a key may have alone, with that of all others."""
    value, hint = getattr(config, key), typing.get_type_hints(type(config))[key]
    bound = bounds_of(type(config)).get(key)
    if key in OTHERS:
        found = OTHERS[key]
    elif isinstance(value, bool):
        found = [not value]
    elif typing.get_origin(hint) is typing.Literal:
        found = typing.get_args(hint)
    elif isinstance(bound, OneOf):
        found = bound.names if key != "kernel" else ["reference"]  # others do not compute everything
    elif isinstance(value, (int, float)):
        found = [2 * value, value // 2 if isinstance(value, int) else value / 2, value + 1, 0]
    else:
        found = []
    for other in found:
        if other != value:
            try:
                yield dataclasses.replace(config, **{key: other})
            except UserError:  # not with the other keys
                continue


def named(here: ModelConfig, there: ModelConfig) -> set[str]:
    """The keys in which two configs differ, as a warm start names them."""
    ours, theirs = here.function(), there.function()
    return {key.rpartition(".")[2] for key in ours if key in theirs and ours[key] != theirs[key]}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ["words", *(name for name in BASES if name != "words")])
def test_parameters_compute_the_same_function_or_the_key_is_named(rng, name):
    base = BASES[name]
    module, inputs = model_of(base)
    params = random_params(rng, module, *inputs)
    shapes, before, tried = shapes_of(base), outputs(base, params), set()
    for field in dataclasses.fields(base):
        for other in other_values(base, field.name):
            key, found = field.name, named(other, base)
            if key.startswith("lora_") and key != "lora_alpha":  # adapters are compared by their arrays
                continue
            tried.add(key)
            if found - {*base.harmless}:
                continue
            if shapes_of(other) != shapes:
                assert key in found, f"{key} {getattr(other, key)!r}: other shapes"
                continue
            after, tolerance = outputs(other, params), 0.05 if key.endswith("dtype") else 1e-4
            np.testing.assert_allclose(
                after, before, rtol=0, atol=tolerance * np.abs(before).max(), err_msg=f"{key} is not named"
            )
    assert len(tried) > 1


def test_there_is_one_for_every_key():
    active = {key for base in BASES.values() for key in base.function()} | {"layer_kinds"}
    for cls in {type(base) for base in BASES.values()}:
        assert {field.name for field in dataclasses.fields(cls)} <= active | {*cls.own}, cls


@pytest.mark.parametrize("position_original_length", [0, 16])
def test_the_trained_length_is_set_where_it_follows_from_the_longest_text(position_original_length):
    keys = YARN | KINDS | {"position_original_length": position_original_length}
    kinds = {"near": {"position_factor": 4.0}, "far": {"position_scaling": "none"}}
    config = DecoderConfig(**STACK | keys | {"layer_kinds": kinds})
    near = position_original_length or 8
    assert config.settled() == {
        "position_original_length": 16,
        "layer_kinds": {
            "near": {"position_factor": 4.0, "position_original_length": near},
            "far": kinds["far"],
        },
    }
    longer = dataclasses.replace(config, max_length=64)
    changed = set() if position_original_length else {"position_original_length"}
    assert named(longer, config) - {"max_length"} == changed
    settled = dataclasses.replace(config, **config.settled() | {"max_length": 64})
    assert named(settled, config) == {"max_length"}
