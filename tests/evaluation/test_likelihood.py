"""The evaluator's numbers are those of the whole set, whatever its batches."""

import math
import re
import warnings
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.errors import UserError
from transformer.evaluation.likelihood import LikelihoodEvaluator, by_row
from transformer.evaluation.terms_by_row import split_by_row
from transformer.training.losses.token_losses import LossConfig, token_losses
from transformer.training.metrics import Sum


class Batches:
    parts: ClassVar = {}

    def __init__(self, batches):
        self.batches = batches
        self.rows = SimpleNamespace(counted=sum(len(each["x"]) for each in batches if each))

    def batch_at(self, step):
        return self.batches[step]

    def __len__(self):
        return len(self.batches)

    def iterate(self, start):
        return iter(self.batches[start:])


@jax.jit
def step(params, batch):
    nll = params * batch["x"]
    loss = Sum.of(nll, batch["weights"])
    return {"loss": loss, "bits_per_byte": Sum(loss.total / math.log(2), jnp.sum(batch["bytes"]))}


def ragged(rng, rows=(7, 3, 8, 1), t=11):
    return [
        {
            "x": b * rng.gamma(2.0, size=(b, t)).astype(np.float32),
            "weights": (rng.random((b, t)) < rng.random()).astype(np.float32),
            "bytes": rng.integers(0, 9, (b, t)).astype(np.int32),
        }
        for b in rows
    ]


def test_equals_the_mean_over_all_tokens_at_once(rng):
    batches = ragged(rng)
    whole = {name: np.concatenate([b[name].astype(np.float64) for b in batches]) for name in batches[0]}
    nats = 1.5 * (whole["x"] * whole["weights"]).sum()
    loss = nats / whole["weights"].sum()
    results = LikelihoodEvaluator(step, Batches(batches))(jnp.float32(1.5))
    assert set(results) == {"loss", "perplexity", "bits_per_byte"}
    assert all(type(value) is float for value in results.values())
    np.testing.assert_allclose(results["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(results["perplexity"], np.exp(loss), rtol=1e-5)
    np.testing.assert_allclose(results["bits_per_byte"], nats / np.log(2) / whole["bytes"].sum(), rtol=1e-6)


def test_reads_only_as_many_batches_as_asked_and_puts_each_on_the_devices(rng):
    batches = ragged(rng)
    put = []

    def remember(batch):
        put.append(batch)
        return jax.device_put(batch)

    limited = LikelihoodEvaluator(step, Batches(batches), remember, batches=2)(jnp.float32(1.0))
    assert [id(batch) for batch in put] == [id(batch) for batch in batches[:2]]
    assert limited == LikelihoodEvaluator(step, Batches(batches[:2]))(jnp.float32(1.0))


def test_counts_stay_exact_beyond_float32():
    part = Sum(jnp.float32(2.0**24), jnp.float32(2.0**24))
    one = Sum(jnp.float32(1.0), jnp.float32(0.0))
    terms = iter([{"n": part}, {"n": one}, {"n": one}, {"n": one}])
    results = LikelihoodEvaluator(lambda params, batch: next(terms), Batches([{}] * 4))(None)
    assert results["n"] == (2**24 + 3) / 2**24


def test_a_huge_loss_has_infinite_perplexity_and_no_data_is_an_error():
    with warnings.catch_warnings(action="error"):
        results = LikelihoodEvaluator(lambda params, batch: {"loss": Sum(1e4, 1.0)}, Batches([{}]))(None)
    assert results["perplexity"] == math.inf
    with pytest.raises(UserError, match="0 batches"):
        LikelihoodEvaluator(step, Batches([]))(None)


def test_rows_add_up_to_the_whole_batch(rng):
    """Each row's part is what the batch of that row alone gives."""
    (batch,) = ragged(rng, rows=(7,))
    terms, rows = jax.jit(by_row(step))(jnp.float32(1.5), batch)
    for name, term in terms.items():
        np.testing.assert_allclose(rows[name].sum(axis=0), [term.total, term.weight], rtol=1e-5)
    for i in range(7):
        alone = step(jnp.float32(1.5), {key: values[i : i + 1] for key, values in batch.items()})
        for name, term in alone.items():
            np.testing.assert_allclose(rows[name][i], [term.total, term.weight], rtol=1e-5)


def test_the_interval_is_that_of_rows_drawn_again(rng):
    batches = ragged(rng, rows=(60, 60))
    evaluator = LikelihoodEvaluator(jax.jit(by_row(step)), Batches(batches))
    found = evaluator(jnp.float32(1.5))
    assert found == pytest.approx(LikelihoodEvaluator(step, Batches(batches))(jnp.float32(1.5)), rel=1e-5)
    told = evaluator.describe()
    sums = np.concatenate(
        [[(1.5 * b["x"] * b["weights"]).sum(1), b["weights"].sum(1)] for b in batches], axis=1
    )
    counted = 120
    assert told["measured"].startswith(f"{counted} of {counted} rows, {sums[1].sum():,.0f} targets")
    drawn = [sums[:, rng.integers(counted, size=counted)].sum(axis=1) for _ in range(2000)]
    wanted = np.percentile([total / weight for total, weight in drawn], [2.5, 97.5])
    ends = [float(end) for end in re.search(r"interval (\S+) to (\S+) ", told["loss"]).groups()]
    width = wanted[1] - wanted[0]
    np.testing.assert_allclose(ends, wanted, atol=0.15 * width)
    assert ends[0] < found["loss"] < ends[1] and set(told) == {"measured", *found}


def test_the_terms_of_a_loss_are_the_sums_of_those_of_rows(rng):
    """Also of terms without a gradient, which are only reported: `nll`, `bits_per_byte`."""
    x_btd = rng.normal(size=(3, 4, 5)).astype(np.float32)
    batch = {
        "targets": rng.integers(0, 5, (3, 4)),
        "weights": rng.uniform(0.5, 1.0, (3, 4)).astype(np.float32),
        "bytes": rng.integers(1, 9, (3, 4)).astype(np.int32),
    }

    def measure(batch):
        loss = LossConfig(name="focal", arguments={"gamma": 2.0})
        return token_losses(lambda x, part=None: x, x_btd, batch, loss, 5, train=False), None

    terms, rows, _ = split_by_row(measure, batch)
    assert terms.keys() == rows.keys() == {"loss", "nll", "bits_per_byte"}
    for name, term in terms.items():
        assert np.all(rows[name] > 0)
        np.testing.assert_allclose(rows[name].sum(axis=0), [term.total, term.weight], rtol=1e-5)
