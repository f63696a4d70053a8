"""Position encodings that all layers of a stack share: one table, however the stack is run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.decoding import test_incremental as incremental
from tests.parameters import random_params, roles_by_name
from transformer.errors import UserError
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.decoder_config import StackConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.optim.rules import numbered, parameter_settings

VOCAB = incremental.VOCAB
SHARED = DecoderConfig(
    d_model=16, num_layers=5, num_heads=2, d_ff=24, max_length=32, position="t5", share_position=True
)
KINDS = {
    "one kind": {},
    "kinds with the same parameters": {
        "layers": ("near", "far"),
        "layer_kinds": {"near": {"pattern": "window", "pattern_size": 3}, "far": {}},
    },
    "kinds with others": {
        "layers": ("wide", "plain", "wide"),
        "layer_kinds": {"wide": {"d_ff": 12}, "plain": {"position": "none"}},
    },
}


def make(rng, **changes):
    model = Decoder(dataclasses.replace(SHARED, **changes), VOCAB)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


@pytest.mark.thorough
@pytest.mark.parametrize("kinds", KINDS)
def test_scanned_unrolled_and_rematerialised_have_the_same_values_and_gradients(rng, kinds):
    model, params = make(rng, **KINDS[kinds])
    tokens, weights = rng.integers(0, VOCAB, (2, 7)), rng.normal(size=(2, 7, VOCAB))

    def value_and_gradient(**changes):
        other = Decoder(dataclasses.replace(model.config, **changes), VOCAB)

        def value(params):
            return jnp.sum(weights * other.apply({"params": params}, tokens)[..., :VOCAB])

        return jax.jit(jax.value_and_grad(value))(params)

    expected, gradient = value_and_gradient()
    found, other = value_and_gradient(scan_layers=True, remat="full")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), other, gradient)
    tables = [g for path, g in traverse_util.flatten_dict(gradient, sep="/").items() if "position" in path]
    assert [len(g) for g in tables] == [1] and np.abs(tables[0]).max() > 0


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{"skips": True}, KINDS["kinds with others"]])
def test_decoding_is_the_sequence_form(rng, changes):
    incremental.check_steps(rng, *make(rng, **changes))


@pytest.mark.thorough
def test_all_layers_read_one_table(rng):
    """The model with a table in each layer computes the same if all these are equal."""
    model, params = make(rng)
    tokens = rng.integers(0, VOCAB, (2, 7))
    table = params["blocks"]["attention"]["position"]["table"]
    assert table.shape == (1, 32, 2)
    own = Decoder(dataclasses.replace(SHARED, share_position=False), VOCAB)
    flat = traverse_util.flatten_dict(params, sep="/")
    flat["blocks/attention/position/table"] = jnp.repeat(table, 5, axis=0)
    expected = own.apply({"params": traverse_util.unflatten_dict(flat, sep="/")}, tokens)
    np.testing.assert_allclose(model.apply({"params": params}, tokens), expected, atol=1e-5)


def test_encoder_and_decoder_have_a_table_each():
    config = EncoderDecoderConfig(d_model=16, num_heads=2, position="t5", share_position=True, num_layers=3)
    one = jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(lambda: config.build(VOCAB).init(jax.random.key(0), one, one)["params"])
    flat = traverse_util.flatten_dict(params, sep="/")
    tables = {path: box.value.shape for path, box in flat.items() if path.endswith("position/table")}
    assert tables == {f"{of}_blocks/attention/position/table": (1, 32, 2) for of in ("encoder", "decoder")}


def test_rules_match_a_shared_parameter_as_one_of_the_first_layer(rng):
    _, params = make(rng)
    paths = [names for names in numbered(params, ()) if "position" in names[0]]
    assert paths == [["blocks/0/attention/position/table"]]
    assert max(map(len, numbered(params, ()))) == 5
    settings = parameter_settings(params, OptimizerConfig(frozen_layers=1), roles=roles_by_name)["blocks"][
        "attention"
    ]
    assert settings["position"]["table"].frozen is True
    np.testing.assert_array_equal(settings["query"]["kernel"].frozen.ravel(), [True, *[False] * 4])


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(UserError, match=r"^share_position: true with position 'rope'; only 't5', 'shaw'"):
        StackConfig(share_position=True)
    with pytest.raises(UserError, match=r"^attention_scale: 1.0 with position 'shaw', which scales its own"):
        StackConfig(attention_scale=1.0, position="shaw")
    with pytest.raises(UserError, match=r"^position_buckets: 8 with position 'rope', only with 't5'"):
        StackConfig(position_buckets=8)
