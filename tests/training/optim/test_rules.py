import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from tests.parameters import roles_by_name
from tests.training.optim.test_optimizer import CONFIG
from transformer.errors import UserError
from transformer.models.decoder import DecoderConfig
from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer
from transformer.training.optim.rules import Rule, check_rules, parameter_settings, stop_gradients
from transformer.training.run_config import check_adapters

N = 3


def params(rng):
    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    blocks = {"attention": {"query": {"kernel": draw(N, 4, 2, 2), "lora_down": {"kernel": draw(N, 4, 1)}}}}
    trunk = {"blocks": blocks, "position": {"table": draw(5, 4)}, "final_norm": {"scale": draw(4)}}
    return {"encoder": {"embedding": {"table": draw(7, 4)}, "trunk": trunk}, "head": {"kernel": draw(4, 2)}}


def update(tree, gradients, **changes):
    optimizer, _ = make_optimizer(
        OptimizerConfig(**CONFIG | {"name": "sgd", "learning_rate": 1.0} | changes), 10, roles=roles_by_name
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
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
        names = jax.tree_util.keystr(path)
        assert bool(jnp.abs(leaf).any()) == ("lora" in names or "head" in names)


@pytest.mark.thorough(but=1)
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
        make_optimizer(OptimizerConfig(**CONFIG | key | more), 10, roles=roles_by_name)[0]
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
    for keys, zero in (({"frozen_layers": 2}, 2), ({"layer_decay": 0.5}, 0), ({"frozen_layers": 9}, N)):
        config = OptimizerConfig(**CONFIG | keys)
        gradients = jax.grad(
            lambda p, c=config: sum(
                jnp.sum(x) for x in jax.tree.leaves(stop_gradients(p, c, roles=roles_by_name))
            )
        )(tree)
        for leaf in jax.tree.leaves(gradients["encoder"]["trunk"]["blocks"]):
            np.testing.assert_array_equal(
                leaf, np.broadcast_to((np.arange(N) >= zero).reshape(-1, *[1] * (leaf.ndim - 1)), leaf.shape)
            )
        assert np.all(gradients["encoder"]["embedding"]["table"] == (zero == 0))
        assert np.all(gradients["head"]["kernel"] == 1)


@pytest.mark.thorough
def test_the_backward_pass_ends_above_frozen_blocks(rng):
    """The compiled step has neither their gradients nor what leads to them alone."""
    model = DecoderConfig(d_model=32, num_layers=4, num_heads=2, d_ff=64).build(32)
    tokens = rng.integers(0, 32, (2, 16))
    tree = nn.unbox(model.init(jax.random.key(0), tokens)["params"])

    def flops(**keys):
        config = OptimizerConfig(**CONFIG | keys)

        def loss(p):
            return jnp.sum(
                model.apply({"params": stop_gradients(p, config, roles=roles_by_name)}, tokens) ** 2
            )

        return jax.jit(jax.grad(loss)).lower(tree).compile().cost_analysis()["flops"]

    whole, half, none = flops(), flops(frozen_layers=2), flops(train_only="final_norm")
    np.testing.assert_allclose(half, (whole + none) / 2, rtol=0.1)


KINDS = ("window", "window", "full")
DEPTHS = {"window": [0, 1, 3, 4], "full": [2, 5]}


def kinds(rng):
    """Six layers of two kinds, which are stacked per kind."""

    def kernel(n):
        return {"query": {"kernel": jnp.asarray(rng.normal(size=(n, 4, 4)), jnp.float32)}}

    blocks = {name: kernel(len(depths)) for name, depths in DEPTHS.items()}
    return {"embedding": {"table": jnp.ones((3, 4))}, "blocks": blocks, "head": {"kernel": jnp.ones((4, 2))}}


def test_layers_of_kinds_are_counted_by_their_depth(rng):
    tree, gradients = kinds(rng), kinds(rng)
    settings = {**CONFIG, "name": "sgd", "learning_rate": 1.0, "layer_decay": 0.5, "frozen_layers": 2}
    config = OptimizerConfig(**settings)
    check_rules(tree, config, KINDS, roles_by_name)
    optimizer, _ = make_optimizer(config, 10, (), KINDS, roles_by_name)
    found, _ = optimizer.update(gradients, optimizer.init(tree), tree)
    held = jax.grad(
        lambda p: sum(jnp.sum(x) for x in jax.tree.leaves(stop_gradients(p, config, KINDS, roles_by_name)))
    )(tree)
    for name, depths in DEPTHS.items():
        for i, depth in enumerate(depths):
            rate = 0.5 ** (5 - depth) if depth >= 2 else 0.0
            whole = gradients["blocks"][name]["query"]["kernel"][i]
            np.testing.assert_allclose(found["blocks"][name]["query"]["kernel"][i], -rate * whole, rtol=1e-6)
            np.testing.assert_array_equal(held["blocks"][name]["query"]["kernel"][i], depth >= 2)
    np.testing.assert_allclose(found["head"]["kernel"], -gradients["head"]["kernel"])
    with pytest.raises(UserError, match="frozen_layers: 7; the model has 6 blocks"):
        check_rules(tree, OptimizerConfig(**settings | {"frozen_layers": 7}), KINDS, roles_by_name)


def test_positions_in_attention_are_frozen_with_their_layer():
    table = np.zeros((3, 4, 2))
    tree = {"position": {"table": table[0]}, "blocks": {"attention": {"position": {"table": table}}}}
    found = parameter_settings(tree, OptimizerConfig(**CONFIG | {"frozen_layers": 1}), roles=roles_by_name)
    assert found["position"]["table"].frozen is True
    frozen = found["blocks"]["attention"]["position"]["table"].frozen
    np.testing.assert_array_equal(np.ravel(frozen), [True, False, False])


def test_a_rule_names_a_layer_of_kinds_by_its_depth(rng):
    config = OptimizerConfig(**CONFIG | {"rules": (Rule("blocks/5/", frozen=True),)})
    found = parameter_settings(kinds(rng), config, KINDS, roles_by_name)["blocks"]
    assert found["window"]["query"]["kernel"].frozen is False
    np.testing.assert_array_equal(np.ravel(found["full"]["query"]["kernel"].frozen), [False, True])


def test_kinds_with_the_same_parameters_are_one_stack(rng):
    config = OptimizerConfig(**CONFIG | {"frozen_layers": 2})
    found = parameter_settings(params(rng), config, ("attention", "full"), roles_by_name)["encoder"]["trunk"][
        "blocks"
    ]
    frozen = found["attention"]["query"]["kernel"].frozen
    np.testing.assert_array_equal(np.ravel(frozen), [True, True, False])


@pytest.mark.parametrize(
    ("key", "value"), [("layer_decay", 0.0), ("layer_decay", 1.5), ("frozen_layers", -1)]
)
def test_values_out_of_range_are_named(key, value):
    with pytest.raises(UserError, match=f"^{key}: {value}"):
        OptimizerConfig(**CONFIG | {key: value})


PATTERNS = (
    "kernel",
    "embedding",
    "blocks/1/",
    "blocks/[02]/.*kernel",
    "^head",
    "table$",
    "lora",
    "query/(kernel|bias)",
    "norm|position",
    "",
)
FACTORS = {"sgd": {}, "adamw": {"b1": 0.8, "b2": 0.9, "eps": 1e-7}}
RATE, DECAY = 0.05, 0.2


def flat(tree):
    return {
        "/".join(entry.key for entry in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def layers_of(path, leaf):
    """(path with the layer's number, index of its part of the array)."""
    if "blocks/" not in path:
        return [(path, ...)]
    before, after = path.split("blocks/")
    return [(f"{before}blocks/{i}/{after}", i) for i in range(len(leaf))]


def said(rules, path, key, default):
    for rule in rules:
        if re.search(rule["match"], path) and key in rule:
            return rule[key]
    return default


def reference(rules, name, start, gradients):
    """Every layer of every array by itself, in float64: SGD or AdamW with the settings of its path."""
    found = {}
    for path, leaf in flat(start).items():
        found[path] = np.array(leaf, np.float64)
        for layer, index in layers_of(path, leaf):
            if said(rules, layer, "frozen", False):
                continue
            own = said(rules, layer, "optimizer", name)
            rate = RATE * said(rules, layer, "learning_rate", 1.0)
            decay = said(rules, layer, "weight_decay", DECAY if layer.endswith("kernel") else 0.0)
            p, m, s = found[path][index], 0.0, 0.0
            for u, gradient in enumerate(gradients, 1):
                g = step = np.asarray(flat(gradient)[path][index], np.float64)
                if own == "adamw":
                    b1, b2, eps = 0.8, 0.9, 1e-7
                    m, s = b1 * m + (1 - b1) * g, b2 * s + (1 - b2) * g * g
                    step = m / (1 - b1**u) / (np.sqrt(s / (1 - b2**u)) + eps)
                p = p - rate * (step + decay * p)
            found[path][index] = p
    return found


def draw_rules(rng):
    """Weight decays and optimizers by patterns that do not divide stacked layers."""
    rules = []
    for _ in range(rng.integers(1, 6)):
        rule = {"match": str(rng.choice(PATTERNS))}
        whole = "blocks/" not in rule["match"]
        if rng.random() < 0.5:
            rule["learning_rate"] = float(rng.uniform(0.1, 3))
        if rng.random() < 0.4 and whole:
            rule["weight_decay"] = float(rng.choice([0.0, 0.1, DECAY, 0.5]))
        if rng.random() < 0.3 and whole:
            rule["optimizer"] = str(rng.choice(["sgd", "adamw"]))
        if rng.random() < 0.3 or len(rule) == 1:
            rule["frozen"] = bool(rng.random() < 0.7)
        rules.append(rule)
    return rules


@pytest.mark.parametrize("case", range(12))
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_list_of_rules_against_each_layer_by_itself(rng, name, case):
    """What moves, how far, what the optimizer keeps, and what gradients are left for a norm."""
    given = draw_rules(rng)
    rules = tuple(
        Rule(**rule, arguments=FACTORS[rule["optimizer"]] if "optimizer" in rule else {}) for rule in given
    )
    config = OptimizerConfig(
        **CONFIG
        | {"name": name, "learning_rate": RATE, "weight_decay": DECAY}
        | {"rules": rules, "arguments": FACTORS[name]}
    )
    optimizer, _ = make_optimizer(config, 10, roles=roles_by_name)
    start, gradients = params(rng), [params(rng) for _ in range(3)]
    tree, state = start, optimizer.init(start)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, tree)
        tree = optax.apply_updates(tree, updates)
    wanted = reference(given, name, start, gradients)
    for path, leaf in flat(tree).items():
        np.testing.assert_allclose(leaf, wanted[path], rtol=2e-4, atol=2e-5, err_msg=f"{path} by {given}")
    trained = {"sgd": 0, "adamw": 0}
    gradients = flat(
        jax.grad(
            lambda p: sum(jnp.sum(x) for x in jax.tree.leaves(stop_gradients(p, config, roles=roles_by_name)))
        )(start)
    )
    for path, leaf in flat(start).items():
        for layer, index in layers_of(path, leaf):
            frozen = said(given, layer, "frozen", False)
            assert np.all(gradients[path][index] == (not frozen))
            trained[said(given, layer, "optimizer", name)] += 0 if frozen else leaf[index].size
    assert sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim) == 2 * trained["adamw"]


def test_the_first_rule_that_gives_a_setting_counts_and_short_forms_come_behind(rng):
    rules = (
        Rule("blocks/2/", learning_rate=3.0),
        Rule("blocks", weight_decay=0.0, frozen=False),
        Rule("head", frozen=True),
    )
    tree, gradients = params(rng), params(rng)
    found, _ = update(tree, gradients, rules=rules, layer_decay=0.5, frozen_layers=1, weight_decay=0.3)
    block, whole = (
        x["encoder"]["trunk"]["blocks"]["attention"]["query"]["kernel"] for x in (found, gradients)
    )
    for i, factor in enumerate((0.25, 0.5, 3.0)):
        np.testing.assert_allclose(block[i], -factor * whole[i], rtol=1e-5)
    assert (
        not np.abs(found["head"]["kernel"]).any() and not np.abs(found["encoder"]["embedding"]["table"]).any()
    )


def test_embeddings_decay_by_a_rule_also_where_muon_leaves_them_to_adam(rng):
    tree = params(rng)
    zeros = jax.tree.map(jnp.zeros_like, tree)
    for decay in (0.3, 0.1):  # that of the matrices too
        found, _ = update(
            tree, zeros, name="contrib.muon", weight_decay=0.1, rules=(Rule("table$", weight_decay=decay),)
        )
        for path, leaf in flat(found).items():
            part = decay if path.endswith("table") else 0.1 * ("blocks" in path)
            np.testing.assert_allclose(leaf, -part * flat(tree)[path], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"match": "(", "frozen": True}, r"^match: '\(' is not a regular expression"),
        (
            {"match": "a"},
            "^match: 'a' has no setting; expected one of learning_rate, weight_decay, frozen, opt",
        ),
        ({"match": "a", "learning_rate": 0.0}, "^learning_rate: 0.0; expected a factor above 0, or frozen"),
        ({"match": "a", "weight_decay": -0.1}, "^weight_decay: -0.1 is negative"),
        ({"match": "a", "frozen": True, "arguments": {"b1": 0.1}}, "^arguments: {'b1': 0.1} of no optimizer"),
    ],
)
def test_rules_that_say_nothing_or_nonsense_are_refused(rule, message):
    with pytest.raises(UserError, match=message):
        Rule(**rule)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rules": (Rule("embeding", frozen=True),)},
            r"optimizer.rules\[0\].match: 'embeding' matches no param",
        ),
        ({"train_only": "haed"}, "train_only: no parameter's name starts with 'haed'; did you mean 'head'"),
        ({"frozen_layers": 4}, "frozen_layers: 4; the model has 3 blocks"),
        (
            {"rules": (Rule("head", weight_decay=0.1), Rule("", frozen=True))},
            r"^config.optimizer.rules\[1\].match '': all parameters are frozen; leave some out$",
        ),
        (
            {"frozen_layers": 3, "train_only": "blocks"},
            "optimizer.frozen_layers 3, train_only 'blocks': all parameters are frozen",
        ),
    ],
)
def test_what_matches_or_leaves_nothing_is_refused(rng, changes, message):
    with pytest.raises(UserError, match=message):
        check_rules(params(rng), OptimizerConfig(**CONFIG | changes), roles=roles_by_name)
    one_layer = (Rule("blocks/0/", frozen=False), Rule("", frozen=True))
    check_rules(params(rng), OptimizerConfig(**CONFIG | {"rules": one_layer}), roles=roles_by_name)


def test_adapters_beside_which_everything_is_trained_are_refused():
    def check(**settings):
        optimizer = OptimizerConfig(**CONFIG | settings)
        check_adapters(types.SimpleNamespace(optimizer=optimizer, model=DecoderConfig(lora_rank=8)))

    with pytest.raises(UserError, match=r"^optimizer.train_only: '' with model.lora_rank 8; expected pre"):
        check()
    check(train_only="lora")
    check(rules=(Rule("^(?!.*lora)", frozen=True),))


def test_layers_of_one_array_have_one_optimizer_and_one_decay(rng):
    for rule in (Rule("blocks/1/", weight_decay=0.3), Rule("blocks/1/", optimizer="adam")):
        with pytest.raises(
            UserError, match="layers of encoder/trunk/blocks/attention/query/kernel, one array"
        ):
            update(params(rng), params(rng), rules=(rule,))


@pytest.mark.parametrize("name", ["sgd", "adamw", "contrib.muon", "cautious.adamw", "cautious.contrib.muon"])
def test_token_embeddings_decay_at_their_own_rate(rng, name):
    """Without gradients what moves is what decays, by rate times decay."""
    tree = params(rng)
    still = jax.tree.map(jnp.zeros_like, tree)
    given = {"name": name, "learning_rate": 0.5, "weight_decay": 0.2, "embedding_weight_decay": 0.1}
    found, _ = update(tree, still, **given)
    encoder, theirs = found["encoder"], tree["encoder"]
    np.testing.assert_allclose(
        encoder["embedding"]["table"], -0.05 * theirs["embedding"]["table"], rtol=1e-5, atol=1e-7
    )
    kernel = encoder["trunk"]["blocks"]["attention"]["query"]["kernel"]
    whole = theirs["trunk"]["blocks"]["attention"]["query"]["kernel"]
    np.testing.assert_allclose(kernel, -0.1 * whole, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(encoder["trunk"]["position"]["table"], 0)
    np.testing.assert_array_equal(encoder["trunk"]["final_norm"]["scale"], 0)
