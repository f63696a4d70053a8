import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.test_optimizer import CONFIG
from transformer.errors import UserError
from transformer.training.optimizer import OptimizerConfig, make_optimizer
from transformer.training.tuning import Tuning, frozen, hold

N = 3


def params(rng):
    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    blocks = {"attention": {"query": {"kernel": draw(N, 4, 2, 2), "lora_down": {"kernel": draw(N, 4, 1)}}}}
    trunk = {"blocks": blocks, "position": {"table": draw(5, 4)}, "final_norm": {"scale": draw(4)}}
    return {"encoder": {"embedding": {"table": draw(7, 4)}, "trunk": trunk}, "head": {"kernel": draw(4, 2)}}


def update(tree, gradients, **changes):
    optimizer, _ = make_optimizer(
        OptimizerConfig(**CONFIG | {"name": "sgd", "learning_rate": 1.0} | changes), 10
    )
    updates, state = optimizer.update(gradients, optimizer.init(tree), tree)
    return updates, state


def test_each_block_learns_more_slowly_than_the_one_above_it(rng):
    tree, gradients = params(rng), params(rng)
    found, _ = update(tree, gradients, layer_decay=0.5)
    block = found["encoder"]["trunk"]["blocks"]["attention"]["query"]["kernel"]
    whole = gradients["encoder"]["trunk"]["blocks"]["attention"]["query"]["kernel"]
    for i in range(N):
        np.testing.assert_allclose(block[i], -whole[i] * 0.5 ** (N - 1 - i), rtol=1e-6)
    np.testing.assert_allclose(found["head"]["kernel"], -gradients["head"]["kernel"])
    for name in (("embedding", "table"), ("trunk", "position", "table")):
        ours, theirs = found["encoder"], gradients["encoder"]
        for part in name:
            ours, theirs = ours[part], theirs[part]
        np.testing.assert_allclose(ours, -theirs * 0.5**N, rtol=1e-6)
    np.testing.assert_allclose(
        found["encoder"]["trunk"]["final_norm"]["scale"],
        -gradients["encoder"]["trunk"]["final_norm"]["scale"],
    )


@pytest.mark.parametrize("layers", [1, 2, N, N + 4])
def test_frozen_blocks_and_what_is_below_them_stay(rng, layers):
    tree, gradients = params(rng), params(rng)
    found, _ = update(tree, gradients, name="adamw", weight_decay=0.1, frozen_layers=layers)
    moved = (
        np.abs(found["encoder"]["trunk"]["blocks"]["attention"]["query"]["kernel"]).reshape(N, -1).max(axis=1)
    )
    np.testing.assert_array_equal(moved > 0, np.arange(N) >= layers)
    assert not np.abs(found["encoder"]["embedding"]["table"]).any()
    assert not np.abs(found["encoder"]["trunk"]["position"]["table"]).any()
    assert (
        np.abs(found["head"]["kernel"]).all()
        and np.abs(found["encoder"]["trunk"]["final_norm"]["scale"]).all()
    )


def test_of_what_is_frozen_the_optimizer_keeps_nothing(rng):
    tree, gradients = params(rng), params(rng)
    updates, state = update(tree, gradients, name="adamw", train_only="lora, head")
    sizes = sum(leaf.size for leaf in jax.tree.leaves(state))
    trained = tree["head"]["kernel"].size + N * 4
    assert 2 * trained <= sizes <= 2 * trained + 8  # two moments, and counts
    held = frozen(tree, Tuning(1.0, 0, "lora,head"))
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
        names = jax.tree_util.keystr(path)
        assert bool(jnp.abs(leaf).any()) == ("lora" in names or "head" in names)
    assert sum(jax.tree.leaves(held)) == 4


@pytest.mark.parametrize("name", ["adamw", "contrib.muon", "adafactor"])
@pytest.mark.parametrize("layers", [1, 2])
def test_of_frozen_blocks_the_optimizer_keeps_nothing_and_sees_nothing(rng, name, layers):
    """The trained blocks move as those of a stack that has no others, and the state is as large as theirs."""
    key = {"name": name, "layer_decay": 0.5}
    tree = params(rng)
    kept = {**tree, "encoder": {"trunk": {**tree["encoder"]["trunk"]}}}
    del kept["encoder"]["trunk"]["position"]

    def above(tree):
        blocks = jax.tree.map(lambda leaf: leaf[layers:], tree["encoder"]["trunk"]["blocks"])
        trunk = {"blocks": blocks, "final_norm": tree["encoder"]["trunk"]["final_norm"]}
        return {"encoder": {"trunk": trunk}, "head": tree["head"]}

    whole, part = (
        make_optimizer(OptimizerConfig(**CONFIG | key | more), 10)[0]
        for more in ({"frozen_layers": layers}, {})
    )
    state, other = whole.init(tree), part.init(above(tree))
    small = above(tree)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(each)) for each in (state, other)]
    assert sizes[0] == sizes[1]
    for _ in range(2):
        gradients = params(rng)
        updates, state = whole.update(gradients, state, tree)
        wanted, other = part.update(above(gradients), other, small)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), above(updates), wanted)
        for leaf in jax.tree.leaves(updates["encoder"]["trunk"]["blocks"]):
            assert not leaf[:layers].any()
        tree, small = optax.apply_updates(tree, updates), optax.apply_updates(small, wanted)


def test_what_is_frozen_has_no_gradient(rng):
    tree = params(rng)
    for config, zero in ((Tuning(1.0, 2, ""), 2), (Tuning(0.5, 0, ""), 0), (Tuning(1.0, 9, ""), N)):
        held = frozen(tree, config)
        gradients = jax.grad(lambda p, h=held: sum(jnp.sum(x) for x in jax.tree.leaves(hold(p, h))))(tree)
        for leaf in jax.tree.leaves(gradients["encoder"]["trunk"]["blocks"]):
            np.testing.assert_array_equal(
                leaf, np.broadcast_to((np.arange(N) >= zero).reshape(-1, *[1] * (leaf.ndim - 1)), leaf.shape)
            )
        assert np.all(gradients["encoder"]["embedding"]["table"] == (zero == 0))
        assert np.all(gradients["head"]["kernel"] == 1)


@pytest.mark.parametrize(
    ("key", "value"), [("layer_decay", 0.0), ("layer_decay", 1.5), ("frozen_layers", -1)]
)
def test_values_out_of_range_are_named(key, value):
    with pytest.raises(UserError, match=f"^{key}: {value}"):
        dataclasses.replace(Tuning(1.0, 0, ""), **{key: value})
