import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.embedding import PADDED_LOGIT, Embedding, Unembedding
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import EncoderConfig, TextEncoder
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.training import parallel

SHAPE = {"d_model": 64, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_length": 512}
VOCAB = 500


def rms(x) -> float:
    return float(jnp.sqrt(jnp.mean(jnp.square(x))))


@pytest.mark.parametrize("scale", [False, True])
def test_embeddings_come_out_at_the_rms_asked_for(rng, scale):
    asked = float(rng.uniform(0.1, 3))
    plain = Embedding(VOCAB, 64, scale=scale)
    module = Embedding(VOCAB, 64, scale=scale, rms=asked)
    tokens = jnp.arange(VOCAB)[None]
    params = nn.meta.unbox(module.init(jax.random.key(0), tokens))
    assert rms(module.apply(params, tokens)) == pytest.approx(asked, rel=0.05)
    assert rms(plain.apply(params, tokens)) == pytest.approx(1.0 if scale else 0.02, rel=0.05)
    # The logits are those of the table as it is.
    x = jnp.asarray(rng.normal(size=(1, 2, 64)), jnp.float32)
    logits = [each.apply(params, x, method="attend")[..., :VOCAB] for each in (plain, module)]
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("config", [DecoderConfig, EncoderConfig, EncoderDecoderConfig])
def test_positions_are_added_at_the_scale_of_embeddings(rng, config, position):
    asked = float(rng.uniform(0.1, 3))
    c = config(**SHAPE, position=position, embedding_rms=asked)
    at, x = jnp.arange(512)[None], jnp.zeros((1, 512, 64))
    module = c.positions()
    params = nn.meta.unbox(module.init(jax.random.key(0), x, at, method="embed"))
    added = module.apply(params, x, at, method="embed")
    assert rms(added) == pytest.approx(asked * (0.5**0.5 if position == "sinusoidal" else 1), rel=0.05)
    other = dataclasses.replace(c, position_rms=0.3).positions().apply(params, x, at, method="embed")
    np.testing.assert_allclose(other, added * 0.3 / asked, rtol=1e-4)
    plain = dataclasses.replace(c, embedding_rms=0.0).positions().apply(params, x, at, method="embed")
    assert rms(plain) == pytest.approx(0.5**0.5 if position == "sinusoidal" else 0.02, rel=0.05)
    np.testing.assert_allclose(added / rms(added), plain / rms(plain), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("config", [DecoderConfig, EncoderConfig, EncoderDecoderConfig])
def test_models_hand_the_key_on(rng, config):
    """At twice the rms twice the stream enters, from the same parameters, types of tokens and all."""
    tokens = jnp.asarray(rng.integers(0, VOCAB, (2, 7)))
    at = jnp.broadcast_to(jnp.arange(7), (2, 7))

    def entering(asked: float):
        c = config(**SHAPE, position="learned", embedding_rms=asked)
        if config is EncoderConfig:
            model = TextEncoder(c, VOCAB)
            params = nn.meta.unbox(model.init(jax.random.key(0), tokens))
            both = model.bind(params)
            return both.embedding(tokens) + both.token_types(jnp.zeros_like(tokens))
        model = c.build(VOCAB)
        inputs = (tokens, tokens) if config is EncoderDecoderConfig else (tokens,)
        params = nn.meta.unbox(model.init(jax.random.key(0), *inputs))
        if config is EncoderDecoderConfig:
            return model.bind(params).source_embedding(tokens)
        return model.apply(params, tokens, at, method="embed")

    np.testing.assert_allclose(entering(2.0), 2 * entering(1.0), rtol=1e-6)
    assert rms(entering(1.0)) > 0.9


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
@pytest.mark.parametrize("config", [DecoderConfig, EncoderConfig])
def test_an_rms_that_cannot_be_is_named(config, value):
    with pytest.raises(UserError, match=f"^embedding_rms: {value}; expected"):
        config(**SHAPE, embedding_rms=value)
    with pytest.raises(UserError, match=r"^position_rms: 1.0 with position 'rope', only with 'sinusoidal', "):
        config(**SHAPE, position_rms=1.0)


def test_devices_add_up_the_gradient_of_their_columns_of_the_table(rng):
    """No device gathers the whole batch, or has the whole gradient: over `data` they add up a quarter."""
    mesh = parallel.make_mesh(parallel.MeshConfig(data=2, fsdp=4))
    module = Embedding(50, 16, multiple=1)
    tokens = rng.integers(0, 50, (8, 6))
    params = random_params(rng, module, tokens)

    def loss(params, tokens):
        x = module.apply({"params": params}, tokens)
        return jnp.sum(jnp.sin(nn.with_logical_constraint(x, ("batch", "length", "activation_embed"))))

    expected = jax.grad(loss)(params, tokens)
    with parallel.placed(mesh, parallel.RULES["default"]):
        columns = jax.NamedSharding(mesh, jax.P(None, "fsdp"))
        inputs = jax.device_put(params, columns), jax.device_put(tokens, parallel.batch_sharding(mesh))
        program = jax.jit(jax.grad(loss), out_shardings={"table": columns}).lower(*inputs).compile()
        actual = program(*inputs)
    np.testing.assert_allclose(actual["table"], expected["table"], rtol=1e-5, atol=1e-6)
    assert not re.findall(r"= f32\[\d+,\d+,\d+\]\S* all-gather", program.as_text())
    sizes = re.findall(r"= f32\[(\d+),(\d+)\]\S* all-reduce", program.as_text())
    assert sizes == [("50", "4")]


@pytest.mark.parametrize("tied", [True, False])
def test_capped_logits_against_float64(rng, tied):
    x = rng.normal(size=(2, 3, 16))
    module = (Embedding if tied else Unembedding)(50, *[16] * tied, soft_cap=2.5)
    method = {"method": "attend"} if tied else {}
    given = jnp.asarray(x, jnp.float32)
    params = random_params(rng, module, given, **method)
    table = np.float64(params["table"]).T if tied else np.float64(params["kernel"])
    logits = module.apply({"params": params}, given, **method)
    assert np.abs(x @ table).max() > 5
    np.testing.assert_allclose(logits[..., :50], 2.5 * np.tanh(x @ table[:, :50] / 2.5), atol=2e-5)
    np.testing.assert_array_equal(logits[..., 50:], PADDED_LOGIT)  # padding has no probability


@pytest.mark.parametrize("tied", [False, True])
def test_logits_in_bfloat16_are_those_in_float32_rounded_once(rng, tied):
    tokens, x = jnp.arange(VOCAB)[None], jnp.asarray(rng.normal(size=(2, 3, 64)), jnp.bfloat16)
    make, method = (Embedding, "attend") if tied else (functools.partial(Unembedding, multiple=128), None)
    sizes = (VOCAB, 64) if tied else (VOCAB,)
    plain, low = (make(*sizes, dtype="bfloat16", logits_dtype=name) for name in ("float32", "bfloat16"))
    params = nn.meta.unbox(plain.init(jax.random.key(0), tokens if tied else x))
    logits, rounded = (module.apply(params, x, method=method) for module in (plain, low))
    assert rounded.dtype == jnp.float32
    real = logits[..., :VOCAB].astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_array_equal(rounded[..., :VOCAB], real)
    assert (rounded[..., VOCAB:] == PADDED_LOGIT).all() and (logits[..., :VOCAB] != real).any()
