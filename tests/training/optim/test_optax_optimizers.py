"""Muon on recurrent models: which of their parameters are its matrices, and what it makes of each gate."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from tests.training.optim.test_optimizer import make
from transformer.errors import UserError
from transformer.models.recurrent import RecurrentConfig
from transformer.training.optim.optax_optimizers import matrix_dimensions
from transformer.training.optim.roles import joined, roles_of
from transformer.training.optim.rules import Rule

RATE = 0.1
VARIANTS = {
    "gru_additive": {},
    "lstm_dot": {"cell": "lstm", "attention": "dot", "tie_embeddings": False},
    "lstm_none": {"cell": "lstm", "attention": "none", "share_embeddings": False},
}
every_variant = pytest.mark.parametrize("changes", [
    pytest.param(changes, id=name, marks=[] if name == "gru_additive" else pytest.mark.thorough)
    for name, changes in VARIANTS.items()
])  # fmt: skip


def shapes(**changes):
    """The parameters of a recurrent encoder-decoder, as shapes."""
    config = RecurrentConfig(d_model=8, num_layers=1, vocab_multiple=1, **changes)
    one = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(config.build(11).init, jax.random.key(0), one, one)["params"]


def drawn(rng, tree):
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), nn.unbox(tree))


def roles(path):
    """Those of every variant's parameters, of which no two differ under one name."""
    for changes in VARIANTS.values():
        with contextlib.suppress(UserError):
            return roles_of(lambda changes=changes: shapes(**changes))(path)
    raise AssertionError(path)


def by_path(tree):
    return {joined(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def is_hidden(path):
    return path.endswith("kernel") and not path.startswith("unembedding")


def change(params, gradients, **settings):
    """The first update of each parameter, by path."""
    optimizer, _ = make(name="contrib.muon", learning_rate=RATE, roles=roles, **settings)
    return by_path(jax.jit(optimizer.update)(gradients, optimizer.init(params), params)[0])


@pytest.mark.thorough
@every_variant
def test_muon_leaves_embeddings_heads_and_vectors_to_adam(rng, changes):
    params = drawn(rng, shapes(**changes))
    found = by_path(matrix_dimensions(params, roles))
    adam = optax.nadam(RATE)
    wanted = by_path(jax.jit(adam.update)(params, adam.init(params), params)[0])
    for path, update in change(params, params).items():
        assert (path in found) == is_hidden(path)  # None is not a leaf
        if not is_hidden(path):
            np.testing.assert_allclose(update, wanted[path], rtol=1e-4, atol=1e-6)
    assert {"encoder_0/recurrent/kernel", "encoder_reverse_0/input/kernel", "bridge/kernel"} < found.keys()


@pytest.mark.thorough
@every_variant
def test_the_update_of_each_gate_is_orthogonal(rng, changes):
    """Gradients U S V^T, of very different sizes in each gate, become U S' V^T with S' near the identity."""
    params = drawn(rng, shapes(**changes))
    left, right = {}, {}

    def draw(path, leaf):
        name, matrix = joined(path), jnp.moveaxis(leaf, 1, 0) if leaf.ndim == 3 else leaf
        if not is_hidden(name):
            return jnp.zeros_like(leaf)
        u, _, vt = np.linalg.svd(rng.normal(size=matrix.shape), full_matrices=False)
        s = rng.uniform(0.3, 1, (*matrix.shape[:-2], u.shape[-1]))
        if leaf.ndim == 3:
            s = s * 10.0 ** np.arange(len(s))[:, None]
        left[name], right[name] = u, vt
        gradient = (u * s[..., None, :]) @ vt
        return jnp.asarray(np.moveaxis(gradient, 0, 1) if leaf.ndim == 3 else gradient, jnp.float32)

    gradients = jax.tree_util.tree_map_with_path(draw, params)
    for path, update in change(params, gradients).items():
        if not is_hidden(path):
            assert not np.any(update)
            continue
        update = np.moveaxis(update, 1, 0) if update.ndim == 3 else np.asarray(update)
        scale = -RATE * max(1, update.shape[-1] / update.shape[-2]) ** 0.5
        inner = np.swapaxes(left[path], -1, -2) @ (update / scale) @ np.swapaxes(right[path], -1, -2)
        sizes = np.diagonal(inner, axis1=-2, axis2=-1)
        np.testing.assert_allclose(inner, sizes[..., None] * np.eye(sizes.shape[-1]), atol=0.02)
        assert sizes.min() > 0.6 and sizes.max() < 1.3


@pytest.mark.thorough
def test_rules_and_weight_decay_take_the_same_matrices(rng):
    """With rules, and with Adam's own rate, the matrices move as without; they alone decay."""
    params, gradients = (drawn(rng, shapes()) for _ in range(2))
    zeros = jax.tree.map(jnp.zeros_like, params)
    plain = change(params, gradients, weight_decay=0.5)
    slow = change(params, gradients, weight_decay=0.5, adam_learning_rate=RATE / 4)
    frozen = change(params, gradients, weight_decay=0.5, rules=(Rule("^encoder_0/recurrent", frozen=True),))
    decay = change(params, zeros, weight_decay=0.5)
    by_rule = change(params, zeros, weight_decay=0.5, rules=(Rule("^embedding", learning_rate=0.5),))
    for path, before in by_path(params).items():
        close = {"rtol": 1e-4, "atol": 1e-6}
        np.testing.assert_allclose(slow[path], plain[path] * (1 if is_hidden(path) else 0.25), **close)
        kept = 0 if path.startswith("encoder_0/recurrent") else 1
        np.testing.assert_allclose(frozen[path], plain[path] * kept, **close)
        for update in (decay, by_rule):
            np.testing.assert_allclose(update[path], -RATE * 0.5 * before * is_hidden(path), **close)
