import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from scipy import special

import launch
from tests import runs
from transformer.errors import UserError
from transformer.layers.embedding import PADDED_LOGIT
from transformer.sums import Sum
from transformer.training.losses import LOSSES
from transformer.training.losses.token_losses import LossConfig, token_loss, token_losses, token_weights
from transformer.training.state import State
from transformer.training.step import make_train_step

BY_DEFINITION = {
    "cross_entropy": lambda log_p: -log_p,
    "focal": lambda log_p, gamma=2.0: -((1 - np.exp(log_p)) ** gamma) * log_p,
}
"""Each loss in float64."""

EVERY = [("cross_entropy", {}), ("focal", {}), ("focal", {"gamma": 0.5}), ("focal", {"gamma": 0.0})]


def test_there_is_a_definition_of_each():
    assert BY_DEFINITION.keys() == LOSSES.keys() == {name for name, _ in EVERY}


def in_float64(logits, targets, vocab, name, arguments, smoothing):
    """sum_v p_v f(log q_v), with p = (1 - a) one-hot + a / V over the real vocabulary only."""
    log_q = special.log_softmax(logits[..., :vocab], axis=-1)
    p = (1 - smoothing) * np.eye(vocab)[targets] + smoothing / vocab
    return (p * BY_DEFINITION[name](log_q, **arguments)).sum(-1)


def test_z_loss_is_the_square_of_the_logarithm_of_z(rng):
    logits, weights = rng.normal(0, 3, (2, 5, 11)), rng.random((2, 5))
    batch = {"targets": jnp.asarray(rng.integers(0, 11, (2, 5))), "weights": jnp.asarray(weights)}
    states = jnp.asarray(logits, jnp.float32)
    term = token_losses(lambda x: x, states, batch, LossConfig(z_loss=0.1), 11, True)["z_loss"]
    expected = 0.1 * np.sum(weights * special.logsumexp(logits, axis=-1) ** 2)
    np.testing.assert_allclose([term.total, term.weight], [expected, weights.sum()], rtol=1e-5)


@pytest.mark.parametrize(("name", "arguments"), EVERY)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_against_the_smoothed_distribution_in_float64(rng, smoothing, name, arguments):
    vocab, padded = 11, 16
    logits = rng.normal(0, 3, (2, 5, padded))
    logits[..., vocab:] = PADDED_LOGIT
    targets = rng.integers(0, vocab, (2, 5))
    loss = LossConfig(name=name, arguments=arguments).loss
    nll, value, log_z = token_loss(
        jnp.asarray(logits, jnp.float32), jnp.asarray(targets), vocab, loss, smoothing
    )
    log_q = special.log_softmax(logits[..., :vocab], axis=-1)
    np.testing.assert_allclose(nll, -np.take_along_axis(log_q, targets[..., None], -1)[..., 0], atol=1e-5)
    expected = in_float64(logits, targets, vocab, name, arguments, smoothing)
    np.testing.assert_allclose(value, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(log_z, special.logsumexp(logits, axis=-1), atol=1e-5)


@pytest.mark.parametrize(("name", "arguments"), EVERY)
def test_gradients_against_finite_differences_in_float64(rng, name, arguments):
    """Of the loss with smoothing, in the direction of every logit."""
    vocab, h = 7, 1e-6
    logits, targets = rng.normal(0, 2, (3, vocab)), rng.integers(0, vocab, 3)
    loss = LossConfig(name=name, arguments=arguments).loss

    def total(x):
        return jnp.sum(token_loss(x, jnp.asarray(targets), vocab, loss, 0.2)[1])

    found = jax.grad(total)(jnp.asarray(logits, jnp.float32))
    expected = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = h
        up, down = (
            in_float64(logits + sign * step, targets, vocab, name, arguments, 0.2).sum() for sign in (1, -1)
        )
        expected[place] = (up - down) / (2 * h)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_a_target_that_is_certain_leaves_focal_gradients_finite(gamma):
    """log p is 0 there, or by rounding a little more."""
    loss = LossConfig(name="focal", arguments={"gamma": gamma}).loss
    for log_p in (0.0, 1e-7, -1e-9):
        value, gradient = jax.value_and_grad(lambda x: loss(x)[0])(jnp.array([log_p]))
        assert abs(value) < 1e-6 and np.isfinite(gradient).all()


class Guess:
    """Tokens guessed from fixed vectors by one matrix, under a config's loss."""

    def __init__(self, **config):
        self.config = LossConfig(**config)

    def loss(self, params, batch, rng, train):
        return token_losses(lambda x: x @ params["kernel"], batch["x"], batch, self.config, 7, train)

    def weigh(self, batch):
        weight = jnp.sum(batch["weights"])
        return {"loss": weight} | ({"z_loss": weight} if self.config.z_loss else {})


def one_step(rng_seed, batch, microbatches=1, **config):
    """The parameters and metrics after one step of plain gradient descent."""
    optimizer = optax.sgd(0.5)
    kernel = np.random.default_rng(rng_seed).normal(size=(4, 7)).astype(np.float32)
    state = State.create({"kernel": jnp.asarray(kernel)}, optimizer, ema=False)
    step = make_train_step(Guess(**config), optimizer, seed=0, microbatches=microbatches)
    state, metrics = jax.jit(step)(state, batch)
    return state.params["kernel"], {name: float(value.mean) for name, value in metrics.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOSSES)
def test_chunks_microbatches_smoothing_and_z_loss_hold_for_every_loss(rng, name):
    """The first two change nothing, and the others do."""
    seed = int(rng.integers(2**32))
    batch = {
        "x": jnp.asarray(rng.normal(size=(4, 10, 4)), jnp.float32),
        "targets": jnp.asarray(rng.integers(0, 7, (4, 10))),
        "weights": jnp.asarray(rng.random((4, 10)) * rng.random((4, 1)) ** 3, jnp.float32),
    }
    kernels = {}
    for smoothing, z_loss in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.1)):
        config = {"name": name, "label_smoothing": smoothing, "z_loss": z_loss}
        kernel, terms = one_step(seed, batch, **config)
        for chunk, microbatches in ((3, 1), (0, 2), (4, 4)):
            same, same_terms = one_step(seed, batch, microbatches, chunk_size=chunk, **config)
            np.testing.assert_allclose(same, kernel, rtol=1e-4, atol=1e-5)
            assert same_terms == pytest.approx(terms, rel=1e-4, abs=1e-5)
        assert ("nll" in terms) == (name != "cross_entropy")
        kernels[smoothing, z_loss] = np.asarray(kernel)
    plain, smoothed, z = kernels.values()
    assert np.abs(plain - smoothed).max() > 1e-3 and np.abs(plain - z).max() > 1e-3


def test_smoothing_is_for_training_alone(rng):
    batch = {"x": jnp.ones((1, 3, 4)), "targets": jnp.zeros((1, 3), jnp.int32), "weights": jnp.ones((1, 3))}
    params = {"kernel": jnp.asarray(rng.normal(size=(4, 7)), jnp.float32)}
    smoothed = Guess(name="focal", label_smoothing=0.5)
    plain = Guess(name="focal").loss(params, batch, None, False)["loss"]
    assert smoothed.loss(params, batch, None, False)["loss"].total == plain.total
    assert smoothed.loss(params, batch, None, True)["loss"].total != plain.total


def test_half_precision_logits_are_summed_in_float32():
    logits = jnp.zeros((1, 1, 4096), jnp.bfloat16)
    _, _, log_z = token_loss(logits, jnp.zeros((1, 1), jnp.int32), 4096)
    assert log_z.dtype == jnp.float32
    np.testing.assert_allclose(log_z, np.log(4096), rtol=1e-6)


class Sowing(nn.Module):
    """Two layers that each return two terms of all places."""

    @nn.compact
    def __call__(self, x_btd):
        for name in ("first", "second"):
            x_btd = Layer(name=name)(x_btd)
        return x_btd


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x_btd):
        y_btd = x_btd + nn.Dense(4, use_bias=False)(x_btd)
        for term, values in (("square", y_btd**2), ("largest", jnp.abs(y_btd))):
            self.sow("terms", term, Sum(values.sum(), y_btd[..., 0].size))
        return y_btd


class GuessWithTerms(Guess):
    model = Sowing()

    def loss(self, params, batch, rng, train):
        x, sown = self.model.apply({"params": params["model"]}, batch["x"], mutable="terms")
        return token_losses(lambda x: x @ params["kernel"], x, batch, self.config, 7, train, sown)

    def weigh(self, batch):
        return token_weights(batch["weights"], self.config)


@pytest.mark.thorough
def test_terms_from_inside_the_model_are_optimised_with_whole_batch_weights(rng):
    """One with a coefficient is part of the objective, whatever the microbatches; others are reported."""
    batch = {
        "x": jnp.asarray(rng.normal(size=(4, 10, 4)), jnp.float32),
        "targets": jnp.asarray(rng.integers(0, 7, (4, 10))),
        "weights": jnp.asarray(rng.random((4, 10)) * rng.random((4, 1)) ** 3, jnp.float32),
    }
    params = {
        "model": Sowing().init(jax.random.key(int(rng.integers(2**32))), batch["x"])["params"],
        "kernel": jnp.asarray(rng.normal(size=(4, 7)), jnp.float32),
    }

    def objective(params, coefficient):
        """By hand: the mean loss, and the mean of squares over places and layers."""
        x, squares = batch["x"], 0.0
        for name in ("first", "second"):
            x = x + x @ params["model"][name]["Dense_0"]["kernel"]
            squares += (x**2).sum() / 40 / 2
        log_p = jax.nn.log_softmax(x @ params["kernel"])
        nll = -jnp.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
        return (nll * batch["weights"]).sum() / batch["weights"].sum() + coefficient * squares, squares

    for coefficient in (0.0, 0.3):
        guess = GuessWithTerms(model_terms={"square": coefficient} if coefficient else {})
        gradients, squares = jax.grad(objective, has_aux=True)(params, coefficient)
        for microbatches in (1, 2, 4):
            state = State.create(params, optax.sgd(1.0), ema=False)
            step = make_train_step(guess, optax.sgd(1.0), seed=0, microbatches=microbatches)
            state, metrics = jax.jit(step)(state, batch)
            for new, old, gradient in zip(
                *map(jax.tree.leaves, (state.params, params, gradients)), strict=True
            ):
                np.testing.assert_allclose(new, old - gradient, rtol=1e-4, atol=1e-5)
            mean = (coefficient or 1) * float(squares)
            assert float(metrics["square"].mean) == pytest.approx(mean, rel=1e-5)
            assert metrics["largest"].weight == 80
        assert "square" not in guess.loss(params, batch, jax.random.key(0), False)
    guess = GuessWithTerms(model_terms={"sqare": 1.0})
    with pytest.raises(UserError, match=r"^loss.model_terms.sqare: .*; expected one of largest, square$"):
        guess.loss(params, batch, jax.random.key(0), True)


@pytest.mark.parametrize("change", [{"label_smoothing": 1.0}, {"z_loss": -1.0}, {"chunk_size": -1}])
def test_impossible_values_are_refused(change):
    with pytest.raises(UserError, match=next(iter(change))):
        LossConfig(**change)


WRONG = {
    "name: 'fokal'; expected one of 'cross_entropy', 'focal'": {"name": "fokal"},
    "arguments.gama: focal takes only gamma": {"name": "focal", "arguments": {"gama": 1}},
    "arguments.gamma: cross_entropy takes none": {"arguments": {"gamma": 1}},
    "arguments.gamma: -1; expected an exponent": {"name": "focal", "arguments": {"gamma": -1}},
    "arguments: focal cannot be used with {'gamma': 'x'}": {"name": "focal", "arguments": {"gamma": "x"}},
}


@pytest.mark.parametrize("message", WRONG)
def test_an_unknown_loss_or_argument_is_refused(message):
    with pytest.raises(UserError, match=re.escape(message)):
        LossConfig(**WRONG[message])


MISSHAPEN = {
    "() float32": lambda log_p: -jnp.mean(log_p),
    "(2,) float32": lambda log_p: -jnp.mean(log_p, axis=-1),
    "(2, 3) int32": lambda log_p: (log_p < -1).astype(jnp.int32),
    "None": lambda log_p: None,
}
"""What losses of one's own return in place of (2, 3) float32."""


@pytest.mark.parametrize("returned", MISSHAPEN)
def test_a_loss_that_is_none_of_each_token_is_named(monkeypatch, returned):
    monkeypatch.setitem(LOSSES, "own", MISSHAPEN[returned])
    expected = f"name: 'own' returns {returned} for log-probabilities (2, 3) float32; expected a loss of each"
    with pytest.raises(UserError, match=re.escape(expected)):
        LossConfig(name="own")
    monkeypatch.setitem(LOSSES, "own", lambda log_p: -log_p)
    assert LossConfig(name="own").name == "own"


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_with_focal_loss_reports_what_it_minimises_and_nats(tmp_path):
    """In bfloat16, with chunks, z-loss and smoothing, which do not show in what is measured in nats."""
    source, keys = (
        runs.write_corpus(tmp_path / "corpus"),
        {
            "loss.name": "focal",
            "loss.arguments.gamma": "1.5",
            "loss.chunk_size": "5",
            "loss.z_loss": "0.001",
            "loss.label_smoothing": "0.1",
            "model.dtype": "bfloat16",
            "parallel.microbatches": "2",
            "train.batch_size": "16",
        },
    )
    arguments = [f"--config.{key}={value}" for key, value in keys.items()]
    assert launch.main(runs.tiny(source, tmp_path / "run", *arguments)) == 0
    found = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < found["eval/loss"] < found["eval/nll"]
    assert found["eval/perplexity"] == pytest.approx(np.exp(found["eval/nll"]))
    assert found["train/loss"] > 0 and 0 < found["train/z_loss"] < 1


def test_bits_per_byte_are_the_bits_of_all_targets_over_their_bytes(rng):
    targets, logits = rng.integers(0, 7, (2, 5)), rng.normal(size=(2, 5, 7)).astype(np.float32)
    weights, size = rng.random((2, 5)) < 0.6, rng.integers(1, 9, (2, 5)).astype(np.float32)
    batch = {"targets": jnp.asarray(targets), "weights": jnp.float32(weights), "bytes": jnp.asarray(size)}
    terms = token_losses(lambda x: x, jnp.asarray(logits), batch, LossConfig(), 7, train=False)
    log_p = special.log_softmax(logits.astype(np.float64), axis=-1)
    bits = -np.sum(weights * np.take_along_axis(log_p, targets[..., None], -1)[..., 0]) / np.log(2)
    assert float(terms["bits_per_byte"].mean) == pytest.approx(bits / size.sum(), rel=1e-5)
