"""Roles follow from the names of axes, whatever modules are called."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import transformer.training.optim
from tests.training.optim.test_optimizer import make
from transformer.errors import UserError
from transformer.layers.linear import Linear
from transformer.models.decoder import DecoderConfig
from transformer.training.optim.optax_optimizers import matrix_dimensions
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.optim.roles import left_by_rules, role, roles_of, shares
from transformer.training.optim.rules import Rule, parameter_settings
from transformer.training.parallel import is_boxed, path_names, unboxed

DECIDING = ("optax_optimizers.py", "optimizer.py", "parametrization.py", "roles.py", "layerwise.py")
TOKENS = jnp.zeros((1, 4), jnp.int32)


def boxed(**keys):
    config = DecoderConfig(d_model=8, num_layers=2, num_heads=2, use_bias=True, **{"d_ff": 12} | keys)
    return jax.eval_shape(config.build(11).init, jax.random.key(0), TOKENS)["params"]


def renamed(tree):
    """Every module and every parameter with another name, in the same order."""
    if isinstance(tree, dict):
        return {f"{chr(97 + i)}_module": renamed(each) for i, each in enumerate(tree.values())}
    return tree


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "keys"), [
    ("lamb", {"d_ff": 12}), ("contrib.muon", {"mixer": "latent"}), ("contrib.muon", {"num_experts": 2}),
    ("cautious.adamw", {"tie_embeddings": False}), ("adamw", {"tie_embeddings": False}),
])  # fmt: skip
def test_other_names_of_modules_change_no_update(rng, name, keys):
    ours = boxed(**keys)
    theirs = renamed(ours)
    updates = []
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), unboxed(ours))
    gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), unboxed(ours))
    for tree in (ours, theirs):
        values, given = (params, gradients) if tree is ours else (renamed(params), renamed(gradients))
        optimizer, _ = make(name=name, roles=roles_of(lambda tree=tree: tree), weight_decay=0.1)
        updates.append(jax.jit(optimizer.update)(given, optimizer.init(values), values)[0])
    jax.tree.map(np.testing.assert_array_equal, renamed(updates[0]), updates[1])


def test_a_projection_of_heads_has_its_rows_by_any_name():
    kernel = nn.LogicallyPartitioned(jnp.ones((3, 2, 4, 8)), ("layers", "heads", "head_dim", "embed"))
    tree = {"block": {"mix": {"proj": kernel}}}
    found = matrix_dimensions(unboxed(tree), roles_of(lambda: tree))
    assert found["block"]["mix"]["proj"] == optax.contrib.MuonDimensionNumbers((1, 2), (3,))


@pytest.mark.parametrize(
    ("names", "matrix", "hidden"),
    [
        (("layers", "embed", "heads", "head_dim"), ((1,), (2, 3)), True),
        (("layers", "heads", "head_dim"), None, False),
        (("layers", "expert", "mlp", "embed"), ((2,), (3,)), True),
        (("layers", "embed", None), ((1,), (2,)), True),
        (("replicated", "gates", "state"), ((0,), (2,)), True),
        (("embed", "depth", "state"), ((0,), (2,)), True),
        (("gates", "state"), None, False),
        (("embed", "vocab"), ((0,), (1,)), False),
        (("vocab", "embed"), None, False),
        (("layers", "buckets", "heads"), None, False),
        (("layers",), None, False),
    ],
)
def test_the_axes_say_what_a_parameter_is(names, matrix, hidden):
    found = role(names)
    assert (found.rows, found.columns) == matrix if matrix else not found.is_matrix
    assert found.is_hidden == hidden
    assert found.is_stacked == (names[0] == "layers")


def test_a_parameter_without_a_role_is_refused_by_name():
    tree = {"mine": {"weight": jnp.ones((2, 3))}, "up": Linear((3,), ("embed", "mlp")).init(
        jax.random.key(0), jnp.ones((1, 2))
    )["params"]}  # fmt: skip
    optimizer, _ = make(name="contrib.muon", roles=roles_of(lambda: tree))
    with pytest.raises(UserError, match=r"^mine/weight: it has no names of axes.*with_logical_partitioning"):
        optimizer.init(unboxed(tree))
    tree["mine"] = {"weight": nn.LogicallyPartitioned(jnp.ones((2, 3, 4)), ("embed", "mlp", "length"))}
    optimizer, _ = make(name="contrib.muon", roles=roles_of(lambda: tree))
    with pytest.raises(UserError, match=r"^mine/weight: its axes \('embed', 'mlp', 'length'\) do not say"):
        optimizer.init(unboxed(tree))


def test_a_line_says_what_muon_and_adam_take():
    tree = boxed()
    params, roles = unboxed(tree), roles_of(lambda: tree)
    rules = (Rule("attention/key", frozen=True), Rule("attention/output", optimizer="lion"))
    left, hidden = [], 0
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        if not {"key", "output"} & set(path_names(path)):
            left.append(path)
            hidden += roles(path).is_hidden
    config = OptimizerConfig(name="contrib.muon", schedule="constant", rules=rules)
    assert shares(left_by_rules(params, parameter_settings(params, config, (), roles)), roles) == (
        f"optimizer: {hidden} arrays by Muon, as blocks/attention/query/kernel [2, 8, 2, 4]; "
        f"{len(left) - hidden} arrays by Adam, as blocks/attention/query/bias [2, 2, 4]"
    )


def test_no_name_of_a_module_or_parameter_stands_where_optimizers_are_made():
    """Of the models here; not in any text of these files but docstrings."""
    keys = {key for extra in ({}, {"num_experts": 2, "position": "t5", "tie_embeddings": False})
            for path, _ in jax.tree_util.tree_leaves_with_path(boxed(**extra), is_leaf=is_boxed)
            for key in path_names(path)}  # fmt: skip
    axes = {"experts", "embedding"}
    for file in DECIDING:
        module = ast.parse((Path(transformer.training.optim.__path__[0]) / file).read_text())
        documented = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
        found = {
            node.value
            for node in ast.walk(module)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
        }
        assert not found & (keys - axes | {"blocks", "kernel"}), file
