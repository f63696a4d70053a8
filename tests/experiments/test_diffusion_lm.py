"""Masked diffusion: its bound against all masks of a short row, and the order in which they are filled in."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import find_experiment
from tests import runs
from transformer.data.encoders.noised_text import Noise
from transformer.decoding.denoising import ORDERS, fill_masks
from transformer.errors import UserError
from workdir import api

pytestmark = pytest.mark.usefixtures("in_root")

MASK = 9


def noise_free(targets_bt, weights_bt=None):
    weights_bt = np.ones(targets_bt.shape, np.float32) if weights_bt is None else weights_bt
    ones = np.ones(targets_bt.shape, np.int32)
    return {"targets": targets_bt, "weights": weights_bt, "segments": ones, "tokens": 0 * ones}


def test_the_mean_of_the_bound_is_that_over_all_masks(rng):
    """int_0^1 E[1/r sum of masked nll] dr = sum over masks m of B(|m|, n - |m| + 1) sum of nll(m), where
    nll(m)_i is any function of the visible tokens."""
    n = 4
    nll = {mask: rng.random(n) for mask in itertools.product((False, True), repeat=n)}
    exact = sum(
        math.gamma(sum(mask)) * math.gamma(n - sum(mask) + 1) / math.gamma(n + 1) * values[list(mask)].sum()
        for mask, values in nll.items()
        if any(mask)
    )
    count = 40_000
    batch = Noise(MASK, 3)(noise_free(np.zeros((count, n), np.int32)), np.arange(count))
    drawn = [tuple(row) for row in (batch["tokens"] == MASK).tolist()]
    values = np.array([nll[mask] @ guessed for mask, guessed in zip(drawn, batch["guessed"], strict=True)])
    error = values.std() / math.sqrt(count)
    assert abs(values.mean() - exact) < 4 * error + 2e-3 * exact  # shares below 0.001 are not drawn
    np.testing.assert_allclose(batch["guessed"].mean(), 1, atol=0.03)


def test_noise_depends_on_the_place_alone_and_leaves_what_does_not_count(rng):
    targets = rng.integers(0, 9, (64, 32)).astype(np.int32)
    weights = (rng.random((64, 32)) < 0.7).astype(np.float32)
    places = rng.permutation(10_000)[:64]
    batch = Noise(MASK, 5)(noise_free(targets, weights), places)
    masked = batch["tokens"] == MASK
    assert masked.any() and not masked[weights == 0].any()
    np.testing.assert_array_equal(batch["tokens"][~masked], targets[~masked])
    np.testing.assert_array_equal(batch["segments"], weights)
    assert (batch["guessed"][masked] >= 1).all() and (batch["guessed"][~masked] == 0).all()
    part = Noise(MASK, 5)(noise_free(targets[10:20], weights[10:20]), places[10:20])
    np.testing.assert_array_equal(part["tokens"], batch["tokens"][10:20])
    other = Noise(MASK, 6)(noise_free(targets, weights), places)
    assert (other["tokens"] != batch["tokens"]).any()


def test_shares_of_any_rows_in_succession_are_spread_evenly():
    for first in (0, 1000):
        batch = Noise(MASK, 1)(noise_free(np.zeros((16, 4000), np.int32)), first + np.arange(16))
        shares = np.sort((batch["tokens"] == MASK).mean(axis=1))
        gaps = np.diff(np.concatenate([[shares[-1] - 1], shares]))
        assert gaps.max() < 2.7 / 16


def table_logits(rng, vocab=12):
    """A function of all tokens, in which each place depends on every other."""
    mix = jnp.asarray(rng.normal(size=(vocab, vocab)), jnp.float32)

    def logits(tokens_bt):
        seen_bv = jax.nn.one_hot(tokens_bt, vocab).mean(axis=1)
        place_t = jnp.arange(tokens_bt.shape[1])[:, None] * jnp.linspace(0, 1, vocab)
        logits_btv = 3 * (seen_bv @ mix)[:, None] + jnp.sin(5 * place_t)
        return logits_btv.at[..., MASK].set(-jnp.inf)

    return logits


def keys(count):
    return jnp.stack([jax.random.fold_in(jax.random.key(0), i) for i in range(count)])


def test_greedy_from_the_left_is_one_mask_at_a_time(rng):
    """With as many passes as masks, each takes the likeliest token given all before it."""
    logits = table_logits(rng)
    tokens = np.array([[1, MASK, 2, MASK, MASK, 3], [MASK, 4, MASK, 5, 6, 7]], np.int32)
    filled = fill_masks(logits, jnp.asarray(tokens), keys(2), mask=MASK, steps=3, order="left")
    expected = tokens.copy()
    for row in expected:
        while MASK in row:
            place = row.tolist().index(MASK)
            row[place] = np.argmax(np.asarray(logits(jnp.asarray(row[None])))[0, place])
    np.testing.assert_array_equal(filled, expected)


def test_the_surest_come_first(rng):
    logits = table_logits(rng)
    tokens = np.array([[1, MASK, 2, MASK, MASK, MASK]], np.int32)
    filled = fill_masks(logits, jnp.asarray(tokens), keys(1), mask=MASK, steps=2, order="surest")
    expected = tokens[0].copy()
    for _ in range(2):  # two of the four masks in each pass
        log_p = np.asarray(jax.nn.log_softmax(logits(jnp.asarray(expected[None]))))[0]
        places = np.flatnonzero(expected == MASK)
        chosen = sorted(places, key=lambda place: -log_p[place].max())[:2]
        expected[chosen] = log_p[chosen].argmax(axis=1)
    np.testing.assert_array_equal(filled[0], expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_every_mask_is_filled_in_and_nothing_else_changes(rng, order, steps):
    tokens = np.where(rng.random((5, 17)) < 0.6, MASK, rng.integers(0, 9, (5, 17))).astype(np.int32)
    options = {"mask": MASK, "steps": steps, "order": order, "temperature": 1.0}
    filled = np.asarray(fill_masks(table_logits(rng), jnp.asarray(tokens), keys(5), **options))
    assert not (filled == MASK).any()
    np.testing.assert_array_equal(filled[tokens != MASK], tokens[tokens != MASK])
    alone = fill_masks(
        table_logits(np.random.default_rng(0)), jnp.asarray(tokens[3:4]), keys(5)[3:4], **options
    )
    together = fill_masks(table_logits(np.random.default_rng(0)), jnp.asarray(tokens), keys(5), **options)
    np.testing.assert_array_equal(together[3], alone[0])


def test_draws_have_the_probabilities_of_the_model(rng):
    logits_v = jnp.asarray(rng.normal(size=6), jnp.float32)
    count = 4000
    options = {"mask": MASK, "steps": 1, "order": "random", "temperature": 0.7}
    filled = fill_masks(
        lambda tokens: jnp.broadcast_to(logits_v, (*tokens.shape, 6)),
        jnp.full((count, 1), MASK),
        jax.random.split(jax.random.key(1), count),
        **options,
    )
    shares = np.bincount(np.asarray(filled)[:, 0], minlength=6) / count
    np.testing.assert_allclose(shares, jax.nn.softmax(logits_v / 0.7), atol=4 * math.sqrt(0.25 / count))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run, its parameters, and the folder."""
    with runs.in_root(tmp_path_factory):
        folder = tmp_path_factory.mktemp("diffusion") / "run"
        yield *api.train("configs/diffusion_lm.py:tiny", folder, quiet=True), folder


@pytest.mark.thorough
def test_the_loss_is_the_sum_over_masked_tokens_for_each_token(run):
    """In float64 from the logits of the model; the metric of evaluation is in bits of the bytes of all
    tokens."""
    trained, params, _ = run
    experiment = trained.experiment
    batch = next(iter(experiment.loader("validation").iterate(0)))
    terms = experiment.loss(params, batch, jax.random.key(0), train=False)
    x_btd = experiment.hidden(params, batch)
    logits = np.asarray(experiment.model.apply({"params": params}, x_btd, method="unembed"), np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= logits.max(-1, keepdims=True)
    nll = -np.take_along_axis(log_p, batch["targets"][..., None], axis=-1)[..., 0]
    total = (nll * batch["guessed"]).sum()
    np.testing.assert_allclose(terms["loss"].mean, total / batch["weights"].sum(), rtol=1e-5)
    np.testing.assert_allclose(
        terms["bits_per_byte"].mean, total / math.log(2) / batch["bytes"].sum(), rtol=1e-5
    )
    np.testing.assert_allclose(experiment.weigh(batch)["loss"], batch["weights"].sum())
    assert 0 < batch["guessed"].astype(bool).mean() < 1


@pytest.mark.thorough
def test_prompts_are_filled_in_and_continued(run):
    trained, params, _ = run
    (filled,) = next(trained.experiment.predict(params, ["def [MASK*4](self):[MASK] x"]))
    assert filled.startswith("def ") and "(self):" in filled and filled.endswith(" x")
    assert "MASK" not in filled
    (continued,) = next(trained.experiment.predict(params, ["def fib("]))
    assert continued.startswith("def fib(")
    assert next(trained.experiment.predict(params, ["def fib("]))[0] == continued
    with pytest.raises(UserError, match=r"text 1 has \d+ tokens with its masks; the model reads"):
        next(trained.experiment.predict(params, ["[MASK*9999]"]))


def test_an_unknown_order_is_refused():
    with pytest.raises(UserError, match=r"order: 'best'; expected one of 'surest', 'random', 'left'|order"):
        find_experiment("diffusion_lm").Config.__dataclass_fields__["sample"].type(order="best")
