"""Cautious optimizers against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.parameters import roles_by_name
from transformer.errors import UserError
from transformer.training.optim.optax_optimizers import build
from transformer.training.optim.optimizer import OptimizerConfig


@pytest.mark.parametrize("name,arguments", [("adamw", {"b1": 0.8}), ("lion", {}), ("sgd", {"momentum": 0.9})])
def test_cautious_updates_against_float64(rng, name, arguments):
    """From the updates of the optimizer itself without decay: of each matrix only what agrees with the
    gradient, scaled by its share, and the decay besides."""
    rate, decay = 0.1, 0.2
    shapes = {"blocks": {"up": {"kernel": (3, 4, 5)}}, "final_norm": {"scale": (8,)}}

    def draw():
        return jax.tree.map(
            lambda s: jnp.asarray(rng.normal(size=s), jnp.float32), shapes, is_leaf=lambda x: type(x) is tuple
        )

    def decayed(tree):
        return {"blocks": jax.tree.map(lambda x: True, tree["blocks"]), "final_norm": {"scale": False}}

    def schedule(count):
        return jnp.float32(rate)

    params = draw()
    careful = build(f"cautious.{name}", arguments, schedule, decay, decayed, roles_by_name)
    plain = build(name, arguments, schedule, 0.0, decayed, roles_by_name)
    states = careful.init(params), plain.init(params)
    for _ in range(4):
        gradients = draw()
        found, first = careful.update(gradients, states[0], params)
        given, second = plain.update(gradients, states[1], params)
        states = first, second
        cases = [
            (found["blocks"]["up"]["kernel"][i], given["blocks"]["up"]["kernel"][i],
             gradients["blocks"]["up"]["kernel"][i], params["blocks"]["up"]["kernel"][i])
            for i in range(3)
        ]  # fmt: skip
        cases.append((*(tree["final_norm"]["scale"] for tree in (found, given, gradients)), 0.0))
        for ours, u, g, p in cases:
            u, g = np.float64(u), np.float64(g)
            agrees = u * g < 0
            expected = u * agrees / max(agrees.mean(), 1e-3) - rate * decay * np.float64(p)
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
        params = optax.apply_updates(params, found)


def test_there_is_no_cautious_average():
    with pytest.raises(UserError, match=r"^name: 'cautious.contrib.schedule_free_sgd'; a schedule-free"):
        OptimizerConfig(name="cautious.contrib.schedule_free_sgd", weight_decay=0.0)
    with pytest.raises(UserError, match=r"^name: optax has no optimizer 'adamm'"):
        OptimizerConfig(name="cautious.adamm")
