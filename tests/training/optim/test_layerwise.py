"""Optimizers of whole arrays on stacked layers, against optax on arrays that are not stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from tests.training.optim.test_optimizer import make
from transformer.errors import UserError
from transformer.training.optim.optax_optimizers import OPTIMIZERS, is_optimizer
from transformer.training.optim.optimizer import OptimizerConfig

RATE, STEPS = 0.1, 3
OF_ARRAYS = [name for name in OPTIMIZERS if name != "contrib.muon"]
SHAPES = {"encoder_blocks": 3, "blocks": 2}
GLOBAL = ("contrib.dadapt_adamw", "contrib.dog", "contrib.dowg", "contrib.prodigy")
"""Optimizers that estimate one scale for all parameters."""


def drawn(rng):
    """Stacks of two depths, whose layers differ a thousandfold, and a table."""

    def arrays(n):
        sizes = 10.0 ** -np.arange(n)
        kernel, scale = rng.normal(size=(n, 128, 130)), rng.normal(size=(n, 6))
        return {"up": {"kernel": kernel * sizes[:, None, None]}, "norm": {"scale": scale * sizes[:, None]}}

    params = {name: arrays(n) for name, n in SHAPES.items()} | {"table": rng.normal(size=(5, 4))}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def apart(params):
    """Every layer as arrays of its own."""
    layers = {
        f"{name}_{i}": jax.tree.map(lambda x, i=i: x[i], params[name])
        for name, n in SHAPES.items()
        for i in range(n)
    }
    return layers | {"table": params["table"]}


def after(optimizer, params, gradients):
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for each in gradients:
        updates, state = update(each, state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_same(found, wanted, began):
    for path, expected in jax.tree_util.tree_leaves_with_path(wanted):
        ours, first = (tree for tree in (found, began))
        for entry in path:
            ours, first = ours[entry.key], first[entry.key]
        np.testing.assert_allclose(ours - first, expected - first, rtol=2e-3, atol=1e-5 * np.abs(first).max())


def is_kernel(tree):
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", tree)


MASKED = {"lars": "weight_decay_mask", "lamb": "mask"}
"""The name of the mask of weight decay of those that take one."""


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", OF_ARRAYS)
def test_each_layer_is_an_array_of_its_own(rng, name):
    params, gradients = drawn(rng), [drawn(rng) for _ in range(STEPS)]
    decay = 0.1 if name in MASKED else 0.0
    optimizer, _ = make(name=name, learning_rate=RATE, weight_decay=decay, clip_norm=0.0)
    options = {"weight_decay": decay, MASKED[name]: is_kernel} if name in MASKED else {}
    plain = getattr(optax, name)(RATE, **options)
    found = apart(after(optimizer, params, gradients))
    assert_same(found, after(plain, apart(params), map(apart, gradients)), apart(params))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ["lamb", "cautious.lamb", "adafactor"])
def test_with_rules_and_frozen_layers_too(rng, name):
    """The layers that are trained have the updates that they have without the others."""
    params, gradient = drawn(rng), drawn(rng)
    optimizer, _ = make(name=name, learning_rate=RATE, layer_decay=0.5, frozen_layers=1)
    updates = jax.jit(optimizer.update)(gradient, optimizer.init(params), params)[0]
    plain, _ = make(name=name, learning_rate=RATE)
    for stack, n in SHAPES.items():
        for i in range(n):
            one, of = (
                {"blocks": jax.tree.map(lambda x, i=i: x[i : i + 1], tree[stack])}
                for tree in (gradient, params)
            )
            wanted = plain.update(one, plain.init(of), of)[0]["blocks"]
            scale = 0.0 if i < 1 else 0.5 ** (n - 1 - i)
            for each, expected in zip(jax.tree.leaves(updates[stack]), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(each[i], scale * expected[0], rtol=2e-3, atol=1e-9)


@pytest.mark.thorough
def test_all_others_work_by_element_or_on_all_parameters(rng):
    """So that an optimizer which optax adds is not missing from the list."""
    params, gradients = drawn(rng), [drawn(rng) for _ in range(STEPS)]
    tried = 0
    for prefix, family in {"": optax, "contrib.": optax.contrib}.items():
        for short, factory in sorted(vars(family).items()):
            name = prefix + short
            if name in (*OF_ARRAYS, *GLOBAL) or not is_optimizer(factory):
                continue
            try:
                OptimizerConfig(name=name, weight_decay=0.0)
            except UserError:
                continue
            optimizer, _ = make(name=name, learning_rate=RATE, clip_norm=0.0)
            whole = after(optimizer, params, gradients)
            for stack, n in SHAPES.items():
                for i in range(n):
                    one, *each = (
                        {stack: jax.tree.map(lambda x, i=i: x[i : i + 1], tree[stack])}
                        for tree in (params, *gradients)
                    )
                    alone = after(optimizer, one, each)
                    here = {stack: jax.tree.map(lambda x, i=i: x[i : i + 1], whole[stack])}
                    assert_same(here, alone, one)
            tried += 1
    assert tried > 25
