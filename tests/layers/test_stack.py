"""The collection that layers hand on: what a module of one layer puts there, those of later layers get."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.decoding import test_incremental as incremental
from tests.parameters import random_params
from transformer.layers.mixers import MIXERS, MultiHeadAttention
from transformer.layers.stack import SHARED
from transformer.models.decoder import DecoderConfig

CONFIG = DecoderConfig(d_model=16, num_layers=5, num_heads=2, d_ff=24, max_length=32, position="rope")
VOCAB = incremental.VOCAB


class ValueResidual(MultiHeadAttention, kw_only=True):
    """Values (1 - a) V_l + a V_1 with a learned a. Source: Zhou et al. 2024, "Value residual learning"."""

    def keys_values(self, x_bsd, positions_bs):
        k_bsgk, v_bsgk = super().keys_values(x_bsd, positions_bs)
        init = nn.with_logical_partitioning(nn.initializers.constant(0.5), (None,))
        (a,) = self.param("mix", init, (1,), jnp.float32)
        first_bsgk = self.get_variable(SHARED, "values", v_bsgk)
        self.put_variable(SHARED, "values", first_bsgk)
        return k_bsgk, (1 - a) * v_bsgk + a * first_bsgk


@pytest.fixture(autouse=True)
def with_value_residual(monkeypatch):
    monkeypatch.setitem(MIXERS, "value_residual", ValueResidual)


def make(rng, **changes):
    model = dataclasses.replace(CONFIG, mixer="value_residual", **changes).build(VOCAB)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


def value_and_gradient(model, params, tokens):
    def value(params):
        return jnp.sum(jnp.sin(model.apply({"params": params}, tokens)[..., :VOCAB]))

    return jax.jit(jax.value_and_grad(value))(params)


def test_a_layer_gets_what_the_first_one_put_there(rng):
    """With a = 1 all layers have the values of the first, so later values have no gradient."""
    model, params = make(rng, num_layers=2)
    mix = params["blocks"]["attention"]["mix"]
    params["blocks"]["attention"]["mix"] = jnp.ones_like(mix)
    _, gradient = value_and_gradient(model, params, rng.integers(0, VOCAB, (2, 7)))
    of_values = np.abs(gradient["blocks"]["attention"]["value"]["kernel"]).max(axis=(1, 2, 3))
    of_mix = np.abs(gradient["blocks"]["attention"]["mix"][:, 0])
    assert of_values[0] > 1e-3 and of_values[1] == 0
    assert of_mix[0] < 1e-4 and of_mix[1] > 1e-3


KINDS = {
    "layers": ("near", "far"),
    "layer_kinds": {"near": {"pattern": "window", "pattern_size": 3}, "far": {}},
}


@pytest.mark.thorough
@pytest.mark.parametrize("kinds", [{}, KINDS])
@pytest.mark.parametrize("changes", [{"remat": "full"}, {"scan_layers": True, "remat": "full"}])
def test_it_is_handed_on_in_every_kind_of_loop(rng, kinds, changes):
    """Of five layers, two or one in a round."""
    model, params = make(rng, **kinds)
    other, tokens = make(rng, **kinds, **changes)[0], rng.integers(0, VOCAB, (2, 7))
    expected, found = (value_and_gradient(each, params, tokens) for each in (model, other))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), found, expected)


@pytest.mark.thorough
def test_decoding_is_the_sequence_form(rng):
    incremental.check_steps(rng, *make(rng, num_kv_heads=2, num_layers=3))
