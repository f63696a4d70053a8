import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.parameters import random_params
from transformer.errors import UserError
from transformer.interpret.activations import record
from transformer.interpret.instruments.attribution import attribution
from transformer.interpret.instruments.heads import follows, head_scores, repeated_tokens
from transformer.interpret.instruments.lens import lens
from transformer.interpret.instruments.patching import patching
from transformer.interpret.interventions import logits, patch
from transformer.models.decoder import Decoder, DecoderConfig

SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 12}
VOCAB = 19


def make(rng, **changes):
    model = Decoder(DecoderConfig(**SIZES | changes), VOCAB)
    tokens_bt = jnp.asarray(rng.integers(0, VOCAB, (2, 8)))
    return model, random_params(rng, model, tokens_bt), tokens_bt


def test_a_lens_is_a_model_of_fewer_layers(rng):
    model, params, tokens_bt = make(rng, scan_layers=True, norm="layer")
    exact, c, at_t = numpy_decoder.exact(params), model.config, np.arange(8)
    found_nbtv = lens(model, params, tokens_bt)
    assert found_nbtv.shape == (4, 2, 8, VOCAB)
    for n in range(4):
        blocks = numpy_decoder.layers(c, exact["blocks"])[:n]
        x_td = numpy_decoder.embed(exact, c, np.asarray(tokens_bt[1]), at_t)
        x_td, _ = numpy_decoder.stack(c, blocks, x_td, at_t, at_t[:, None] >= at_t)
        last_td = numpy_decoder.last_norm(exact, c, "final_norm", x_td)
        expected_tv = numpy_decoder.logits(exact, c, last_td)[:, :VOCAB]
        np.testing.assert_allclose(found_nbtv[n, 1], expected_tv, atol=3e-5, rtol=3e-5)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "changes",
    [
        {"feed_forward": "none"},
        {"norm": "layer", "use_bias": True, "output_bias": True, "num_kv_heads": 1},
        {"norm": "rms_offset", "norm_placement": "sandwich", "tie_embeddings": False},
        {"norm": "none", "parallel_sublayers": True, "scale_logits": True, "position": "rope"},
    ],
)
def test_parts_add_up_to_the_difference_of_logits(rng, changes):
    """`rest` is what is missing."""
    model, params, tokens_bt = make(rng, **changes)
    answers_b, others_b = jnp.array([3, 5]), jnp.array([7, 2])
    parts = attribution(model, params, tokens_bt, answers_b, others_b)
    logits_bv, rows = logits(model, params, tokens_bt)[:, -1], np.arange(2)
    expected_b = logits_bv[rows, answers_b] - logits_bv[rows, others_b]
    np.testing.assert_allclose(sum(parts.values()), expected_b, atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(parts["rest"], 0, atol=1e-5 * max(np.abs(x).max() for x in parts.values()))
    heads = [f"blocks/{i}/attention/head_{h}" for i in range(3) for h in range(2)]
    assert all(name in parts for name in heads) == (model.config.norm_placement == "pre")
    assert np.abs(parts["bias"]).max() > 0 or not (changes.get("use_bias") or changes.get("output_bias"))


def test_a_head_adds_what_numpy_finds(rng):
    model, params, tokens_bt = make(rng)
    parts = attribution(model, params, tokens_bt, jnp.array([3, 5]), jnp.array([7, 2]))
    values = record(model, params, tokens_bt, "blocks/1/attention/output/input", "blocks/2")
    exact = numpy_decoder.exact(params)
    kernel_kd = exact["blocks"]["attention"]["output"]["kernel"][1, 1]
    added_bd = np.asarray(values["blocks/1/attention/output/input"][:, -1, 1]) @ kernel_kd
    size_b1 = np.sqrt(np.mean(np.square(values["blocks/2"][:, -1]), axis=-1, keepdims=True) + 1e-6)
    table_vd = exact["embedding"]["table"]
    direction_bd = table_vd[[3, 5]] - table_vd[[7, 2]]
    expected_b = np.sum(added_bd / size_b1 * exact["final_norm"]["scale"] * direction_bd, axis=-1)
    np.testing.assert_allclose(parts["blocks/1/attention/head_1"], expected_b, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("site", ["input", "attention"])
def test_a_grid_patches_each_place_alone(rng, site):
    model, params, tokens_bt = make(rng, scan_layers=True, position="rope", kernel="reference")
    clean_1t, corrupted_1t, answer, other = tokens_bt[:1], tokens_bt[1:], 3, 7
    corrupted_1t = corrupted_1t.at[0, 0].set((clean_1t[0, 0] + 1) % VOCAB)
    grid_nt = patching(model, params, clean_1t, corrupted_1t, answer, other, site)
    assert grid_nt.shape == (3, 8)

    def difference(logits_btv):
        return float(logits_btv[0, -1, answer] - logits_btv[0, -1, other])

    clean, corrupted = (difference(logits(model, params, x)) for x in (clean_1t, corrupted_1t))
    values = record(model, params, clean_1t, f"blocks/*/{site}")
    for layer, position in [(0, 0), (1, 3), (2, 7)]:
        edit = patch(f"blocks/{layer}/{site}", values, positions=position)
        patched = difference(logits(model, params, corrupted_1t, edit))
        expected = (patched - corrupted) / (clean - corrupted)
        np.testing.assert_allclose(grid_nt[layer, position], expected, atol=1e-3)
    assert np.ptp(grid_nt) > 1e-3


def test_tokens_after_earlier_occurrences():
    tokens_bt = np.array([[4, 5, 4, 4, 5]])
    expected_ts = np.zeros((5, 5), bool)
    for t, s in [(2, 1), (3, 1), (3, 3), (4, 2)]:
        expected_ts[t, s] = True
    np.testing.assert_array_equal(follows(jnp.asarray(tokens_bt))[0], expected_ts)


def test_scores_of_heads_are_means_of_their_weights(rng):
    model, params, _ = make(rng, feed_forward="none")
    tokens_bt = jnp.asarray(repeated_tokens(10**6, 3, 5))
    assert tokens_bt.shape == (3, 10) and (tokens_bt[:, :5] == tokens_bt[:, 5:]).all()
    scores = head_scores(model, params, tokens_bt % VOCAB)
    weights = record(model, params, tokens_bt % VOCAB, "blocks/*/attention/weights")
    follows_bts = np.asarray(follows(tokens_bt % VOCAB))
    for i in range(3):
        w_bhts = np.asarray(weights[f"blocks/{i}/attention/weights"])
        queries = follows_bts.any(-1)
        expected_h = [(w_bhts[:, h] * follows_bts).sum(-1)[queries].mean() for h in range(2)]
        np.testing.assert_allclose(scores["induction"][f"blocks/{i}"], expected_h, atol=1e-5)
        expected_h = [np.mean([w_bhts[:, h, t, t - 1] for t in range(1, 10)]) for h in range(2)]
        np.testing.assert_allclose(scores["previous"][f"blocks/{i}"], expected_h, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"norm_placement": "post"}, "model.norm_placement: 'post'; expected pre"),
        ({"logit_soft_cap": 3.0}, "model.logit_soft_cap: 3.0; expected 0"),
    ],
)
def test_logits_that_are_not_sums_are_refused(rng, changes, why):
    model, params, tokens_bt = make(rng, **changes)
    with pytest.raises(UserError, match=f"^attribution: {why}"):
        attribution(model, params, tokens_bt, jnp.array([3, 5]), jnp.array([7, 2]))


def test_texts_that_cannot_be_compared_are_refused(rng):
    model, params, tokens_bt = make(rng)
    with pytest.raises(UserError, match=r"^the texts have 8 and 7 tokens; expected the same number"):
        patching(model, params, tokens_bt[:1], tokens_bt[1:, :7], 3, 7)
    with pytest.raises(UserError, match=r"^both texts give the logit difference -?\d"):
        patching(model, params, tokens_bt[:1], tokens_bt[:1], 3, 7)
    with pytest.raises(UserError, match=r"^induction: no token of the text occurs before"):
        head_scores(model, params, jnp.arange(8)[None])


def test_a_mixer_without_heads_is_one_part(rng):
    model, params, tokens_bt = make(rng, mixer="plain")
    parts = attribution(model, params, tokens_bt, jnp.array([3, 5]), jnp.array([7, 2]))
    assert "blocks/0/attention" in parts
    np.testing.assert_allclose(parts["rest"], 0, atol=1e-3)
    assert jax.tree.all(jax.tree.map(lambda x: x.shape == (2,), parts))
