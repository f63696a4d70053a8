import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.parameters import random_params
from transformer.decoding.generation import generate
from transformer.errors import UserError
from transformer.interpret.activations import record, unrolled
from transformer.interpret.interventions import (
    Interventions,
    logits,
    mean,
    patch,
    resample,
    steer,
    zero,
)
from transformer.models.decoder import Decoder, DecoderConfig, DecoderStepper
from transformer.models.encoder_decoder import EncoderDecoderConfig

SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 12, "use_bias": True}
VOCAB = 19
HEADS = "blocks/1/attention/output/input"


def make(rng, **changes):
    model = Decoder(DecoderConfig(**SIZES | changes), VOCAB)
    tokens_bt = jnp.asarray(rng.integers(0, VOCAB, (2, 8)))
    return model, random_params(rng, model, tokens_bt), tokens_bt


def changed(params, name, change):
    """The parameters with those of layer 1 at a path changed."""
    blocks = jax.tree_util.tree_map_with_path(
        lambda path, x: x.at[1].set(change(x[1])) if jax.tree_util.keystr(path).endswith(name) else x,
        params["blocks"],
    )
    return params | {"blocks": blocks}


@pytest.mark.parametrize(
    "path",
    [
        "blocks/1/input",
        "blocks/*/attention",
        "blocks/*/attention/*",
        "blocks/2/feed_forward/down/input",
        "**",
    ],
)
def test_a_run_patched_with_itself_is_bitwise_the_same(rng, path):
    """With the kernel that scores and weights are computed by."""
    model, params, tokens_bt = make(rng, kernel="reference", position="rope")
    values = record(model, params, tokens_bt, path)
    expected_btv = logits(model, params, tokens_bt)
    np.testing.assert_array_equal(logits(model, params, tokens_bt, patch(path, values)), expected_btv)
    for value in values.values():
        assert not np.allclose(value, 0)


@pytest.mark.parametrize("sublayer", ["attention", "feed_forward"])
@pytest.mark.parametrize("changes", [{}, {"scan_layers": True, "norm_placement": "post", "remat": "full"}])
def test_zeroing_a_sublayer_is_numpy_without_it(rng, monkeypatch, sublayer, changes):
    model, params, tokens_bt = make(rng, **changes)
    compute, calls = vars(numpy_decoder)[sublayer], []

    def skipped(*inputs):
        calls.append(sublayer)
        return 0.0 if len(calls) % 3 == 2 else compute(*inputs)

    monkeypatch.setattr(numpy_decoder, sublayer, skipped)
    exact = numpy_decoder.exact(params)
    expected = [numpy_decoder.decoder(exact, model.config, row)[:, :VOCAB] for row in np.asarray(tokens_bt)]
    found_btv = logits(model, params, tokens_bt, zero(f"blocks/1/{sublayer}"))
    np.testing.assert_allclose(found_btv, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.thorough
def test_heads_and_units_are_those_of_the_parameters(rng):
    model, params, tokens_bt = make(rng)
    without = changed(params, "['output']['kernel']", lambda kernel_hkd: kernel_hkd.at[1].set(0))
    expected_btv = logits(model, without, tokens_bt)
    found_btv = logits(model, params, tokens_bt, zero(HEADS, heads=1))
    np.testing.assert_allclose(found_btv, expected_btv, atol=1e-5)
    by_weights_btv = logits(model, params, tokens_bt, zero("blocks/1/attention/weights", heads=[1]))
    np.testing.assert_allclose(by_weights_btv, expected_btv, atol=1e-5)
    without = changed(params, "['down']['kernel']", lambda kernel_fd: kernel_fd.at[jnp.array([3, 7])].set(0))
    found_btv = logits(model, params, tokens_bt, zero("blocks/1/feed_forward/down/input", units=(3, 7)))
    np.testing.assert_allclose(found_btv, logits(model, without, tokens_bt), atol=1e-5)


@pytest.mark.thorough
def test_a_position_has_the_value_of_the_other_run(rng):
    """Behind the last block nothing mixes positions."""
    model, params, tokens_bt = make(rng)
    other_bt = (tokens_bt + 1) % VOCAB
    values = record(model, params, other_bt, "blocks/2")
    found_btv = logits(model, params, tokens_bt, patch("blocks/2", values, positions=[3, 5]))
    ours_btv, theirs_btv = logits(model, params, tokens_bt), logits(model, params, other_bt)
    is_theirs_t = np.isin(np.arange(8), [3, 5])
    np.testing.assert_array_equal(found_btv, np.where(is_theirs_t[:, None], theirs_btv, ours_btv))


def test_scores_of_a_query_are_replaced(rng):
    """Equal scores of all keys give equal weights, of one query and one head alone."""
    model, params, tokens_bt = make(rng)
    edit = zero("blocks/0/attention/scores", positions=4, heads=0)
    with Interventions(edit):
        weights_bhts = record(model, params, tokens_bt, "blocks/0/attention/weights").popitem()[1]
    before_bhts = record(model, params, tokens_bt, "blocks/0/attention/weights").popitem()[1]
    np.testing.assert_allclose(weights_bhts[:, 0, 4], np.tile(np.arange(8) < 5, (2, 1)) / 5, atol=1e-6)
    same_ht = ~((np.arange(2) == 0)[:, None] & (np.arange(8) == 4))
    np.testing.assert_allclose(weights_bhts[:, same_ht], before_bhts[:, same_ht], atol=1e-6)


@pytest.mark.thorough
def test_means_random_rows_and_directions(rng):
    model, params, tokens_bt = make(rng)
    (x_btd,) = record(model, params, tokens_bt, "blocks/1/attention").values()
    others = rng.normal(size=(5, 8, 16)).astype(np.float32)

    def edited(edit):
        with Interventions(edit):
            return np.asarray(record(model, params, tokens_bt, "blocks/1/attention").popitem()[1])

    expected_btd = np.broadcast_to(others.mean((0, 1)), x_btd.shape)
    np.testing.assert_allclose(edited(mean("blocks/1/attention", others)), expected_btd, atol=1e-6)
    drawn = [edited(resample("blocks/1/attention", others, seed)) for seed in range(9)]
    rows = {int(np.argwhere((others == row).all((1, 2)))[0, 0]) for rows in drawn for row in rows}
    assert rows == {*range(5)}
    np.testing.assert_array_equal(drawn[3], edited(resample("blocks/1/attention", others, 3)))
    direction_d = others[0, 0]
    steered_btd = edited(steer("blocks/1/attention", direction_d, scale=-2.0, positions=range(4)))
    np.testing.assert_allclose(steered_btd[:, :4], x_btd[:, :4] - 2 * direction_d, atol=1e-6)
    np.testing.assert_array_equal(steered_btd[:, 4:], x_btd[:, 4:])


def test_edits_are_made_in_order_and_contexts_inside_one_another(rng):
    model, params, tokens_bt = make(rng)
    twice, once = steer("blocks/1/attention", 2.0), zero("blocks/1/attention")

    def read():
        return np.asarray(record(model, params, tokens_bt, "blocks/1/attention").popitem()[1])

    with Interventions(once, twice):
        assert (read() == 2).all()
    with Interventions(twice):
        with Interventions(once):
            assert (read() == 0).all()
        assert not (read() == 0).any()
    assert not np.isin(read(), (0, 2)).any()


@pytest.mark.thorough
def test_compiled_programs_are_those_of_their_edits(rng):
    """A function that was compiled before, in and after a context."""
    model, params, tokens_bt = make(rng)
    run = jax.jit(functools.partial(model.apply, {"params": params}))
    before_btv, edits = run(tokens_bt), Interventions(zero("blocks/0"))
    for _ in range(2):
        with edits:
            inside_btv = run(tokens_bt)
        assert not np.allclose(inside_btv, before_btv)
        np.testing.assert_array_equal(run(tokens_bt), before_btv)


EDITS = {
    "a head": lambda values: [zero(HEADS, heads=1)],
    "keys of two tokens": lambda values: [zero("blocks/0/attention/key", positions=[2, 9])],
    "a later position": lambda values: [steer("blocks/1/after_attention", 3.0, positions=9)],
    "weights": lambda values: [zero("blocks/2/attention/weights", heads=0)],
    "another text": lambda values: [patch("blocks/1/input", values)],
    "everywhere": lambda values: [zero("embedding"), steer("blocks/*/feed_forward", 0.5)],
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", EDITS)
def test_generation_is_that_of_edited_logits(rng, name):
    """The step form, after padded prompts of different lengths, is the whole model applied to each prefix."""
    model, params, tokens_bt = make(rng, position="rope", scan_layers=True)
    values = record(model, params, (tokens_bt[:1, :4] + 3) % VOCAB, "blocks/1/input")
    edits, lengths, new = EDITS[name](values), (8, 5), 6
    keys, lengths_b = jax.random.split(jax.random.key(0), 2), jnp.array(lengths)
    with Interventions(*edits):
        stepper = DecoderStepper.of(model, params)
        found_bn, _ = generate(stepper, tokens_bt, lengths_b, keys, max_new_tokens=new, temperature=0.0)
        _, cache = jax.jit(lambda stepper: stepper.prefill(tokens_bt, lengths_b, new))(stepper)
        stepped_bnv, _ = jax.jit(lambda stepper: stepper.extend(found_bn, cache))(stepper)
    differences = []
    for row, length, found_n, stepped_nv in zip(tokens_bt, lengths, found_bn, stepped_bnv, strict=True):
        row_1t = jnp.concatenate([row[:length], found_n])[None]
        expected_tv, plain_tv = (logits(model, params, row_1t, *some)[0] for some in (edits, ()))
        np.testing.assert_array_equal(np.argmax(expected_tv, axis=-1)[length - 1 : -1], found_n)
        np.testing.assert_allclose(stepped_nv, expected_tv[length:], atol=1e-4)
        differences.append(np.abs(expected_tv - plain_tv)[length:].max())
    assert max(differences) > 1e-2


@pytest.mark.thorough
def test_targets_are_generated_with_edited_sources(rng):
    model = EncoderDecoderConfig(**SIZES).build(VOCAB)
    source_bs, tokens_bt = (jnp.asarray(rng.integers(0, VOCAB, (1, size))) for size in (7, 5))
    params = random_params(rng, model, source_bs, tokens_bt)
    edits = zero("encoder/1/attention"), zero("decoder/*/cross_attention/value", heads=1)
    with Interventions(*edits):
        stepper = model.stepper(params, bos_id=3)
        prefill = jax.jit(lambda stepper: stepper.prefill(source_bs, jnp.array([7]), 4))
        first_bv, _ = prefill(stepper)
    expected_btv = logits(model, params, (source_bs, jnp.array([[3]])), *edits)
    np.testing.assert_allclose(first_bv, expected_btv[:, 0], atol=1e-5)
    assert not np.allclose(first_bv, logits(model, params, (source_bs, jnp.array([[3]])))[:, 0], atol=1e-2)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (zero("blocks/1/atention"), r"'blocks/1/atention' is the path of no .* did you mean 'blocks/1/att"),
        (zero(HEADS, heads=[0, 2]), rf"heads: 2; {HEADS} has 2, counted from 0"),
        (zero("blocks/1/attention", heads=0), r"heads: blocks/1/attention of shape \(2, 8, 16\) has none"),
        (zero("blocks/1", units=-1), "units: -1; blocks/1 has 16"),
        (zero("final_norm", positions=0), "positions: final_norm has none of the text"),
        (patch("blocks/1", np.zeros((3, 8, 16))), "blocks/1: values of 3 rows; the model reads 2"),
        (patch("final_norm", np.zeros((2, 7, 16))), r"final_norm: a value of shape \(2, 7, 16\); expected"),
        (patch("blocks/*", {"blocks/0": 0.0}), "blocks/1: no value of it among those of blocks/0"),
    ],
)
def test_a_wrong_edit_is_one_line(rng, edit, why):
    model, params, tokens_bt = make(rng)
    with pytest.raises(UserError, match=f"^{why}"):
        logits(model, params, tokens_bt, edit)


@pytest.mark.thorough
def test_layers_of_a_loop_are_refused(rng):
    model, params, tokens_bt = make(rng, scan_layers=True)
    refused = pytest.raises(UserError, match="a scanned or rematerialised stack have no paths")
    with refused, Interventions(zero("blocks/0")):
        model.apply({"params": params}, tokens_bt)
    with Interventions(zero("blocks/0")):
        unrolled(model).apply({"params": params}, tokens_bt)


def test_tokens_behind_the_values_keep_their_own(rng):
    model, params, tokens_bt = make(rng)
    values = np.ones((1, 3, 16), np.float32)
    found_btv = logits(model, params, tokens_bt, patch("blocks/2", values))
    expected_btv = logits(model, params, tokens_bt)
    np.testing.assert_array_equal(found_btv[:, 3:], expected_btv[:, 3:])
    assert not np.isclose(found_btv[:, :3], expected_btv[:, :3]).all(axis=-1).any()
