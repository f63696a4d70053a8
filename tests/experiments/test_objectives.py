"""Every member of `EXPERIMENTS`, by a tiny config of it: a new one is tested without a line of tests."""

import jax
import numpy as np
import pytest

from experiments import EXPERIMENTS, find_experiment
from tests.test_configs import AT_HAND, ONE_OF_EACH
from transformer.training.run import Run
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

PLAIN = {
    "optimizer.name": "sgd",
    "optimizer.learning_rate": "1",
    "optimizer.adam_learning_rate": "0",
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": "0",
    "optimizer.weight_decay": "0",
    "optimizer.clip_norm": "0",
    "optimizer.arguments": "{}",
    "model.dropout": "0",
    "train.batch_size": "4",
    "parallel.microbatches": "1",
}
"""Plain gradient descent without noise."""


def values_of(name, tmp_path):
    values = opening.read_config(f"configs/{ONE_OF_EACH[name]}:tiny")
    if values["data"].get("source") in AT_HAND:
        values["data"]["source"] = AT_HAND[values["data"]["source"]](tmp_path / "corpus")
    return values


def run_of(values, folder, devices=1, **more):
    keys = PLAIN | more
    groups = {group: found for group, found in values.items() if isinstance(found, dict)}
    given = [(key, value) for key, value in keys.items() if key.split(".")[1] in groups[key.split(".")[0]]]
    frozen = opening.check_config(values, given)
    experiment = find_experiment(values["experiment"])(frozen)
    return Run(experiment, frozen, folder, devices=jax.devices()[:devices])


@pytest.fixture(params=EXPERIMENTS)
def made(request, tmp_path):
    """A run of each objective, its first batch, and random parameters."""
    run = run_of(values_of(request.param, tmp_path), tmp_path / "run")
    with run.placed():
        return run, run.loader.batch_at(0), run.first_state()


def terms_of(run, params, train=False):
    e = run.experiment

    def terms(batch, carry):
        if carry is None:
            return e.loss(params, batch, jax.random.key(0), train)
        return e.loss_and_carry(params, batch, carry, jax.random.key(0), train)[0]

    return jax.jit(terms)


@pytest.mark.thorough(but=1)
def test_terms_are_linear_in_the_weights_and_have_those_that_weigh_tells(made):
    run, batch, state = made
    experiment = run.experiment
    with run.placed():
        terms = terms_of(run, state.params)
        whole = terms(batch, state.carry)
        weights = jax.jit(experiment.weigh)(batch)
        assert weights.keys() <= whole.keys() and "loss" in whole
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, whole[name].weight, rtol=1e-6, err_msg=name)
        names = [name for name in experiment.weights if name in batch]
        kept = np.arange(len(next(iter(batch.values())))) % 2
        halves = []
        for own in (kept, 1 - kept):
            weighed = {name: (batch[name].T * own).T.astype(batch[name].dtype) for name in names}
            halves.append(terms({**batch, **weighed}, state.carry))
        for name, term in whole.items() if names else ():
            for part in ("total", "weight"):
                found = sum(float(getattr(half[name], part)) for half in halves)
                bound = 1e-6 * (abs(float(term.total)) + float(term.weight))
                assert found == pytest.approx(float(getattr(term, part)), rel=1e-4, abs=bound), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_microbatches_and_devices_change_nothing(name, tmp_path):
    """After a step of gradient descent with rate 1 the parameters are the same."""
    values, found = values_of(name, tmp_path), {}
    for kind, devices, parts in (("one", 1, 1), ("parts", 1, 2), ("devices", 2, 1)):
        run = run_of(values, tmp_path / kind, devices, **{"parallel.microbatches": str(parts)})
        with run.placed():
            state, batch = run.first_state(), run.put(run.loader.batch_at(0))
            found[kind] = jax.device_get(run.jitted()(state, batch))
    (one, terms), *others = found.values()
    for state, other in others:
        for term, expected in terms.items():
            np.testing.assert_allclose(other[term].mean, expected.mean, rtol=1e-3, atol=1e-5, err_msg=term)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), state.params, one.params
        )
