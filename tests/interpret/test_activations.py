import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.parameters import random_params
from transformer.errors import UserError
from transformer.evaluation.attention_weights import attention_weights
from transformer.interpret.activations import matches, paths, record, unrolled
from transformer.interpret.interventions import Interventions, zero
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder import EncoderConfig, TextEncoder
from transformer.models.encoder_decoder import EncoderDecoderConfig

SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 12, "use_bias": True}
VOCAB = 19


def make(rng, **changes):
    model = Decoder(DecoderConfig(**SIZES | changes), VOCAB)
    tokens_bt = jnp.asarray(rng.integers(0, VOCAB, (2, 8)))
    return model, random_params(rng, model, tokens_bt), tokens_bt


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "rope"},
        {"norm_placement": "sandwich", "num_kv_heads": 1},
        {"scan_layers": True, "remat": "full", "norm_placement": "post"},
    ],
)
def test_the_residual_stream_is_that_of_numpy(rng, changes):
    model, params, tokens_bt = make(rng, **changes)
    c, exact = model.config, numpy_decoder.exact(params)
    values = record(model, params, tokens_bt, "blocks/*/input", "blocks/*")
    assert list(values) == [path for i in range(3) for path in (f"blocks/{i}/input", f"blocks/{i}")]
    for b, tokens_t in enumerate(np.asarray(tokens_bt)):
        at_t = np.arange(8)
        x_td = numpy_decoder.embed(exact, c, tokens_t, at_t)
        blocks = numpy_decoder.layers(c, exact["blocks"])
        x_td, inputs = numpy_decoder.stack(c, blocks, x_td, at_t, at_t[:, None] >= at_t)
        for i, expected_td in enumerate(inputs):
            np.testing.assert_allclose(values[f"blocks/{i}/input"][b], expected_td, atol=2e-5, rtol=2e-5)
        np.testing.assert_allclose(values["blocks/2"][b], x_td, atol=2e-5, rtol=2e-5)


def test_parts_of_a_layer_make_up_what_it_adds(rng):
    """Heads, hidden units, weights and values are those that the outputs of the sublayers are computed of."""
    model, params, tokens_bt = make(rng, feed_forward="relu", num_kv_heads=1)
    values = record(model, params, tokens_bt, "blocks/1/**")
    own = jax.tree.map(lambda x: np.asarray(x[1], np.float64), params["blocks"])
    heads_bthk = values["blocks/1/attention/output/input"]
    weights_bhts, value_bsgk = (values[f"blocks/1/attention/{name}"] for name in ("weights", "value"))
    np.testing.assert_allclose(
        heads_bthk, np.einsum("bhts,bsk->bthk", weights_bhts, value_bsgk[:, :, 0]), atol=1e-5
    )
    kernel_hkd, bias_d = own["attention"]["output"]["kernel"], own["attention"]["output"]["bias"]
    added_btd = np.einsum("bthk,hkd->btd", heads_bthk, kernel_hkd) + bias_d
    np.testing.assert_allclose(values["blocks/1/attention"], added_btd, atol=1e-5)
    after_btd = values["blocks/1/input"] + added_btd
    np.testing.assert_allclose(values["blocks/1/after_attention"], after_btd, atol=1e-5)
    hidden_btf, down = values["blocks/1/feed_forward/down/input"], own["feed_forward"]["down"]
    assert (np.asarray(hidden_btf) >= 0).all()
    added_btd = hidden_btf @ down["kernel"] + down["bias"]
    after_btd = values["blocks/1/after_attention"] + added_btd
    np.testing.assert_allclose(values["blocks/1/after_feed_forward"], after_btd, atol=1e-5)


@pytest.mark.thorough
def test_scores_and_weights_are_those_of_attention(rng):
    model, params, tokens_bt = make(rng)
    values = record(model, params, tokens_bt, "blocks/*/attention/scores", "blocks/*/attention/weights")
    for i in range(3):
        scores_bhts = values[f"blocks/{i}/attention/scores"]
        np.testing.assert_array_equal(np.isneginf(scores_bhts)[0, 0], ~np.tri(8, dtype=bool))
        softmax_bhts = jax.nn.softmax(scores_bhts)
        np.testing.assert_allclose(values[f"blocks/{i}/attention/weights"], softmax_bhts, atol=1e-6)
        expected_hts = attention_weights(model, params, tokens_bt[1], layer=i)
        np.testing.assert_allclose(values[f"blocks/{i}/attention/weights"][1], expected_hts, atol=1e-6)


@pytest.mark.thorough
def test_names_do_not_depend_on_how_layers_are_compiled(rng):
    model, params, tokens_bt = make(rng)
    scanned = model.clone(config=dataclasses.replace(model.config, scan_layers=True, remat="full"))
    assert list(paths(scanned, params, tokens_bt)) == list(paths(model, params, tokens_bt))
    assert unrolled(scanned) == model
    kinds = {"layers": ("a", "b"), "layer_kinds": {"a": {"mixer": "linear"}, "b": {}}}
    several, params, tokens_bt = make(rng, **kinds)
    values = paths(several, params, tokens_bt)
    assert "blocks/1/attention/weights" in values and "blocks/2/attention/weights" not in values
    assert values["blocks/2/attention/query"].shape == (2, 8, 2, 8)


@pytest.mark.thorough
def test_encoders_and_both_halves_of_an_encoder_decoder_are_read(rng):
    encoder, tokens_bt = TextEncoder(EncoderConfig(**SIZES), VOCAB), jnp.ones((2, 5), jnp.int32)
    params, segments_bt = random_params(rng, encoder, tokens_bt), jnp.ones((2, 5), jnp.int32)
    values = record(encoder, params, tokens_bt, "trunk/blocks/*/attention", "output", segments_bt=segments_bt)
    output = encoder.apply({"params": params}, tokens_bt, segments_bt=segments_bt)
    assert list(values) == [*(f"trunk/blocks/{i}/attention" for i in range(3)), "output"]
    np.testing.assert_allclose(values["output"], output, atol=1e-5)

    both, source_bs = EncoderDecoderConfig(**SIZES).build(VOCAB), jnp.ones((2, 7), jnp.int32)
    params = random_params(rng, both, source_bs, tokens_bt)
    values = paths(both, params, (source_bs, tokens_bt))
    assert values["encoder/2/attention/weights"].shape == (2, 2, 7, 7)
    assert values["decoder/0/cross_attention/weights"].shape == (2, 2, 5, 7)
    assert values["decoder/0/after_cross_attention"].shape == (2, 5, 16)
    assert (values["embedding"].shape, values["embedding#2"].shape) == ((2, 7, 16), (2, 5, 16))


def test_the_router_shows_which_experts_serve_a_token(rng):
    model, params, tokens_bt = make(rng, num_experts=4, experts_per_token=1)
    values = record(model, params, tokens_bt, "blocks/0/feed_forward/router", "blocks/0/feed_forward/input")
    read_btd = values["blocks/0/feed_forward/input"]
    expected_bte = read_btd @ params["blocks"]["feed_forward"]["router"]["kernel"][0]
    np.testing.assert_allclose(values["blocks/0/feed_forward/router"], expected_bte, atol=1e-5)


@pytest.mark.thorough
def test_without_a_visitor_the_compiled_program_is_the_same(rng):
    model, params, tokens_bt = make(rng)

    def text():
        jax.clear_caches()
        return jax.jit(model.apply).lower({"params": params}, tokens_bt).compile().as_text()

    before = text()
    record(model, params, tokens_bt, "**")
    with Interventions(zero("blocks/1/attention")):
        assert text() != before
    assert text() == before


def test_a_pattern_without_values_names_the_nearest_path(rng):
    model, params, tokens_bt = make(rng)
    with pytest.raises(UserError, match=r"^'blocks/1/attention/querry' is the path of no value .*'blocks/1/"):
        record(model, params, tokens_bt, "blocks/0/input", "blocks/1/attention/querry")
    with pytest.raises(UserError, match=r"blocks/3/input.*did you mean 'blocks/\d/input'"):
        record(model, params, tokens_bt, "blocks/3/input")


def test_stars_stand_for_names():
    assert matches("blocks/*/input", "blocks/11/input") and not matches("blocks/*", "blocks/1/input")
    assert matches("**/query", "trunk/blocks/1/attention/query") and matches("**", "output")
    assert not matches("blocks/1", "blocks/11") and not matches("a.b", "axb")
