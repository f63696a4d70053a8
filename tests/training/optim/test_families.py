"""Every member of `OPTIMIZERS` and of `SCHEDULES`: a new one is tested without a line of tests."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.optim.test_optimizer import make, tree
from transformer.errors import UserError
from transformer.training.optim.optax_optimizers import OPTIMIZERS, find_optimizer, mask_name
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.optim.schedules import SCHEDULES

MOMENTUM_OF_STEPS = {"lars"}
"""Their momentum is of updates that the rate has already scaled (You et al. 2017, algorithm 1): they move on
where it is 0."""


def optimizer_of(name, **changes):
    masked = mask_name(inspect.signature(find_optimizer(name)).parameters)
    decay = {"weight_decay": 0.1} if masked else {"weight_decay": 0.0}
    return make(name=name, learning_rate=0.1, clip_norm=0.0, **decay, **changes)[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_keeps_its_shapes_and_is_all_arrays(rng, name):
    """So that a checkpoint can keep it, and a compiled step give it back."""
    params, optimizer = tree(rng), optimizer_of(name)
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    shapes = [[(each.shape, each.dtype) for each in jax.tree.leaves(tree)] for tree in (state, after)]
    assert shapes[0] == shapes[1] and jax.tree.structure(state) == jax.tree.structure(after)
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, params)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_descends_and_rests_where_its_rate_is_0(monkeypatch, rng, name):
    monkeypatch.setitem(SCHEDULES, "pause", lambda count, steps: 1.0 * (count != 1))
    params, optimizer = tree(rng), optimizer_of(name, schedule="pause")
    update, state = jax.jit(optimizer.update), optimizer.init(params)

    def loss(params):
        return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))

    for step, rests in ((0, False), (1, True), (2, False)):
        updates, state = update(jax.grad(loss)(params), state, params, step=step)
        largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(updates))
        assert (largest == 0) == (rests and name not in MOMENTUM_OF_STEPS)
        before, params = loss(params), optax.apply_updates(params, updates)
        assert loss(params) <= before if rests else loss(params) < before


def values_of(name, rng):
    """Values of the keys that a schedule reads, drawn."""
    drawn = {"warmup_steps": int(rng.integers(1, 20)), "decay_steps": int(rng.integers(1, 20))}
    drawn["final_fraction"] = float(rng.uniform(0, 1))
    return {
        key: value for key, value in drawn.items() if key in inspect.signature(SCHEDULES[name]).parameters
    }


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_gives_fractions_of_the_peak_on_host_and_device(name, rng):
    _, schedule = make(60, schedule=name, learning_rate=0.5, **values_of(name, rng))
    rates = [schedule(count) for count in range(60)]
    assert all(0 <= rate <= 0.5 * (1 + 1e-6) for rate in rates) and max(rates) > 0.25
    assert isinstance(float(rates[0]), float) and rates[0] > 0  # no step is for nothing
    traced = jax.jit(jax.vmap(schedule))(jnp.arange(60))
    np.testing.assert_allclose(traced, rates, rtol=1e-5, atol=1e-6)


def test_a_schedule_may_have_arguments_of_its_own(monkeypatch):
    """Which are the values of its own keys, beside those of the config that it names."""

    def linear(count, steps, warmup_steps, power=1.0):
        return ((count + 1) / max(steps, warmup_steps)) ** power

    monkeypatch.setitem(SCHEDULES, "linear", linear)
    _, schedule = make(10, schedule="linear", schedule_arguments={"power": 2.0}, learning_rate=1.0)
    assert schedule(4) == pytest.approx(0.25)
    with pytest.raises(UserError, match=r"schedule_arguments.base: linear takes only power"):
        OptimizerConfig(schedule="linear", schedule_arguments={"base": 1})
    with pytest.raises(UserError, match=r"schedule_arguments.power: cosine takes none"):
        OptimizerConfig(schedule_arguments={"power": 2.0})
    with pytest.raises(UserError, match=r"schedule_arguments.warmup_steps: linear takes only power"):
        OptimizerConfig(schedule="linear", schedule_arguments={"warmup_steps": 1})


def test_an_optimizer_of_a_notebook_gets_the_roles_of_parameters(monkeypatch, rng):
    def signs(roles):
        def make(learning_rate, scale=1.0):
            def update(updates, state, params=None):
                rate = learning_rate(state)
                moved = jax.tree_util.tree_map_with_path(
                    lambda path, g: -rate * scale * (jnp.sign(g) if roles(path).is_hidden else 0 * g), updates
                )
                return moved, state + 1

            return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)

        return make

    monkeypatch.setitem(OPTIMIZERS, "signs", signs)
    params = tree(rng)
    keys = {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0}
    optimizer, _ = make(name="signs", arguments={"scale": 2.0}, learning_rate=0.5, **keys)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    kinds = {float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(updates)}
    assert kinds == {0.0, 1.0}
    with pytest.raises(UserError, match=r"arguments.depth: signs takes only scale here"):
        OptimizerConfig(name="signs", arguments={"depth": 1}, weight_decay=0.0)
    with pytest.raises(UserError, match=r"optax has no optimizer 'sings'; did you mean .*signs"):
        OptimizerConfig(name="sings")
