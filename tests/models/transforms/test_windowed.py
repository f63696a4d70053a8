"""The widths of windows of a model that attends less far."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.transforms.windowed import windowed

SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 8, "max_length": 64}


def reach(config):
    """Kind of layers -> the number of tokens on which the last output of one such layer depends."""
    found = {}
    for name in config.kinds:
        one = {"layers": (name,), "layer_kinds": {name: config.layer_kinds[name]}} if name else {}
        alone = DecoderConfig(
            **SIZES | {"num_layers": 1, "pattern": config.pattern, "pattern_size": config.pattern_size} | one
        )
        model, tokens_t = Decoder(alone, 7), np.arange(12) % 7
        params = random_params(np.random.default_rng(0), model, jnp.zeros((1, 1), jnp.int32))
        # Row i has another token at place i, and the last row none.
        tokens_bt = (tokens_t + np.eye(13, 12, dtype=np.int32)) % 7
        *changed, out = jax.jit(model.apply)({"params": params}, tokens_bt)[:, -1]
        moved = [not np.allclose(out, each, atol=1e-6) for each in changed]
        found[name] = 12 - int(np.argmax(moved))
    return found


@pytest.mark.thorough
def test_full_attention_becomes_a_window_and_wider_windows_narrower():
    plain = DecoderConfig(**SIZES)
    assert reach(plain) == {"": 12}
    assert reach(windowed(plain, 5)) == {"": 5}
    assert reach(windowed(DecoderConfig(**SIZES, pattern="window", pattern_size=9), 5)) == {"": 5}
    kinds = {"full": {"pattern": "full"}, "wide": {"pattern_size": 8}, "narrow": {"pattern_size": 3}}
    mixed = DecoderConfig(**SIZES, layers=("full", "wide", "narrow"), layer_kinds=kinds, pattern="window")
    assert reach(mixed) == {"full": 12, "wide": 8, "narrow": 3}
    assert reach(windowed(mixed, 5)) == {"full": 5, "wide": 5, "narrow": 3}


def test_parameters_are_the_same():
    kinds = {"local": {"pattern": "window", "pattern_size": 9}, "linear": {"mixer": "linear"}}
    config = DecoderConfig(**SIZES, layers=("local", "linear"), layer_kinds=kinds)
    shapes = [
        jax.eval_shape(Decoder(each, 7).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
        for each in (config, windowed(config, 4))
    ]
    assert jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])
    assert windowed(config, 4).kinds["linear"] == config.kinds["linear"]


REFUSED = {
    "strided": ({"pattern": "strided", "pattern_size": 4}, "expected model.pattern 'full', or 'window'"),
    "dilated": ({"pattern": "window", "pattern_size": 9, "pattern_extra": 2}, "without dilation"),
    "of_a_kind": (
        {"layers": ("a",), "layer_kinds": {"a": {"pattern": "fixed", "pattern_size": 8}}},
        "expected model.layer_kinds.a.pattern",
    ),
    "narrower": ({"pattern": "window", "pattern_size": 4}, "4; no layer attends to more tokens"),
    "linear": ({"mixer": "linear"}, "4; no layer attends to more tokens"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_wider_window_is_refused(kind):
    keys, said = REFUSED[kind]
    with pytest.raises(UserError, match=said):
        windowed(DecoderConfig(**SIZES, **keys), 4)
