import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.parameters import roles_by_name
from transformer.errors import UserError
from transformer.training.optim.optax_optimizers import matrix_dimensions
from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer
from transformer.training.optim.rules import Rule, parameter_settings
from transformer.training.optim.schedules import SCHEDULES

CONFIG = dict(
    name="adamw",
    learning_rate=0.01,
    schedule="constant",
    warmup_steps=0,
    decay_steps=0,
    final_fraction=0.1,
    weight_decay=0.0,
    clip_norm=1.0,
    ema_decay=0.0,
    layer_decay=1.0,
    frozen_layers=0,
    train_only="",
    arguments={},
)


def make(steps=100, roles=roles_by_name, **changes):
    return make_optimizer(OptimizerConfig(**{**CONFIG, **changes}), steps, roles=roles)


def tree(rng, layers=2, d=4, h=2, k=3, f=5, v=7):
    shapes = {
        "embedding": {"table": (v, d)},
        "blocks": {
            "attention": {
                "query": {"kernel": (layers, d, h, k), "bias": (layers, h, k)},
                "output": {"kernel": (layers, h, k, d)},
            },
            "feed_forward": {"up": {"kernel": (layers, d, f)}, "down": {"kernel": (layers, f, d)}},
            "attention_norm": {"scale": (layers, d)},
        },
        "final_norm": {"scale": (d,)},
        "unembedding": {"kernel": (d, v)},
    }
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def expected_rate(schedule, update, peak, warmup, decay, final, steps):
    """The schedules as their papers write them, in float64, `update` counted from one."""
    if schedule == "inverse_sqrt":
        d_model = 1 / (peak**2 * warmup)
        return d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)
    if update <= warmup:
        return peak * update / warmup
    if schedule == "constant":
        return peak
    if schedule == "wsd":
        stable = steps - decay
        if update <= stable:
            return peak
        return peak + (final * peak - peak) * (update - stable) / decay
    end = warmup + decay if decay else steps
    if update >= end:
        return final * peak
    wave = 0.5 * (1 + math.cos(math.pi * (update - warmup) / (end - warmup)))
    return final * peak + (peak - final * peak) * wave


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_match_their_formulas(name, rng):
    steps = int(rng.integers(40, 200))
    warmup, decay = int(rng.integers(1, steps // 3)), int(rng.integers(1, steps // 3))
    peak, final = float(rng.uniform(1e-4, 1)), float(rng.uniform(0, 1))
    _, schedule = make(
        steps, schedule=name, warmup_steps=warmup, decay_steps=decay, learning_rate=peak, final_fraction=final
    )
    rates = [schedule(count) for count in range(steps)]
    wanted = [expected_rate(name, count + 1, peak, warmup, decay, final, steps) for count in range(steps)]
    np.testing.assert_allclose(rates, wanted, rtol=1e-12, atol=peak * 1e-12)
    traced = jax.jit(jax.vmap(schedule))(jnp.arange(steps))
    assert isinstance(schedule(3), float)
    np.testing.assert_allclose(traced, wanted, rtol=1e-5, atol=peak * 1e-6)
    assert max(rates) == pytest.approx(peak)
    assert rates[warmup - 1] == pytest.approx(peak)


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (lambda count, **_: 1.0 if count else math.nan, "gives nan for step 1;"),
        (lambda count, steps, **_: 1 - 2 * count / steps, r"gives -0.05\d* for step 22;"),
        (lambda count, steps, **_: np.divide(1, steps - 1 - count), "gives inf for step 40;"),
        (lambda count, **_: None, "gives None for step 1;"),
        (lambda count, **_: np.ones(1), r"gives \[1.\] for step 1;"),
        (lambda count, **_: jnp.full(2, 0.5), r"gives \[0.5 0.5\] for step 1;"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_schedule_that_gives_no_rate_is_refused(monkeypatch, rate, said):
    monkeypatch.setitem(SCHEDULES, "own", rate)
    with pytest.raises(
        UserError, match=f"optimizer.schedule: 'own' {said}.* expected a fraction of the peak"
    ):
        make(40, schedule="own")


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_made_longer_warms_up_again_from_where_it_was(name, rng):
    """Until then the schedule of the first length; from there on that of the new one, but for rises, which
    are those of the warm-up. Written out update by update, twice extended and once made shorter."""
    # with a warm-up of 2 its own steps are as high as what the schedule jumps by
    warmup, peak = int(rng.integers(3, 9)), float(rng.uniform(1e-4, 1))
    config = dict(schedule=name, warmup_steps=warmup, decay_steps=8 * (name == "wsd"), learning_rate=peak)
    first, second, third, at = 30, 60, 120, 45
    last = 100
    alone = {length: make(length, **config)[1] for length in (first, second, third, last)}
    lengths = [(first, first), (at, second), (80, third)]
    optimizer_config = OptimizerConfig(**{**CONFIG, **config})
    _, rate = make_optimizer(optimizer_config, last, lengths)
    wanted, steps = [], {first: second, at: third, 80: last}
    bound, now = math.inf, first
    for update in range(1, last + 1):
        if update - 1 in steps:
            now, bound = steps[update - 1], wanted[-1]
        bound += peak / warmup
        wanted.append(min(alone[now](update - 1), bound))
    np.testing.assert_allclose([rate(count) for count in range(last)], wanted, rtol=1e-9, atol=peak * 1e-12)
    traced = jax.jit(jax.vmap(rate))(jnp.arange(last))
    np.testing.assert_allclose(traced, wanted, rtol=1e-5, atol=peak * 1e-6)
    assert np.diff(wanted).max() <= peak / warmup * (1 + 1e-9)
    jumps = max(alone[second](first) - alone[first](first - 1), alone[third](at) - alone[second](at - 1))
    assert (jumps > peak / warmup * 1.01) == (name in ("cosine", "wsd"))  # which would be the steps up
    if name in ("constant", "inverse_sqrt"):
        np.testing.assert_array_equal(
            [rate(count) for count in range(last)], [alone[last](c) for c in range(last)]
        )


OPTIMIZERS = {
    "by_element": {"name": "adamw"},
    "of_matrices": {"name": "contrib.muon"},
    "of_arrays": {"name": "lamb"},
    "one_count": {"name": "contrib.prodigy", "weight_decay": 0.0, "arguments": {"estim_lr0": 0.1}},
    "own_average": {"name": "contrib.schedule_free_adamw", "weight_decay": 0.0},
    "added_decay": {"name": "sgd"},
    "cautious": {"name": "cautious.lion"},
    "rules": {"rules": (Rule("norm", optimizer="sgd"),), "layer_decay": 0.5, "embedding_weight_decay": 0.1},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_rate_of_an_update_is_that_of_its_step(monkeypatch, rng, kind):
    """Of every part of the update, its weight decay too, however many updates the optimizer has counted."""
    monkeypatch.setitem(SCHEDULES, "hole", lambda count, steps: 1.0 * (count != 1))
    optimizer, _ = make(**{"schedule": "hole", "weight_decay": 0.1} | OPTIMIZERS[kind])
    params, gradient = tree(rng), tree(rng)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step, still in ((4, False), (1, True), (1, True), (5, False)):
        updates, state = update(gradient, state, params, step=step)
        params = optax.apply_updates(params, updates)
        moved = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(updates))
        assert moved < 1e-6 if still else moved > 1e-4


def test_cosine_without_decay_steps_ends_with_the_run():
    _, schedule = make(50, schedule="cosine", warmup_steps=10, decay_steps=0, final_fraction=0.25)
    assert float(schedule(49)) == pytest.approx(0.0025)
    assert float(schedule(48)) > 0.0025 * 1.001


def test_schedule_without_warmup_starts_at_the_peak():
    for name in ("constant", "inverse_sqrt"):
        assert float(make(schedule=name)[1](0)) == pytest.approx(0.01)


def run(optimizer, params, gradients):
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = jax.jit(optimizer.update)(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "lion", "adafactor", "nadamw", "contrib.muon"])
def test_decay_is_decoupled_and_only_of_kernels(name, rng):
    """With zero gradients what remains is p (1 - rate weight_decay)^steps where decayed, else p."""
    params = tree(rng)
    zeros = jax.tree.map(jnp.zeros_like, params)
    optimizer, _ = make(name=name, weight_decay=0.5, learning_rate=0.1)
    after = run(optimizer, params, [zeros] * 3)

    def check(path, before, now):
        keys = [entry.key for entry in path]
        decayed = keys[-1] == "kernel" and not (name == "contrib.muon" and keys[0] != "blocks")
        np.testing.assert_allclose(now, before * (0.95**3 if decayed else 1), rtol=1e-5, atol=1e-6)

    jax.tree_util.tree_map_with_path(check, params, after)


def test_added_decay_equals_the_built_in_one(rng):
    params = tree(rng)
    gradients = [tree(rng) for _ in range(4)]
    schedule = dict(schedule="cosine", warmup_steps=2)
    adam, _ = make(6, name="adam", weight_decay=0.3, **schedule)
    adamw, _ = make(6, name="adamw", weight_decay=0.3, **schedule)
    for a, b in zip(
        *map(jax.tree.leaves, (run(adam, params, gradients), run(adamw, params, gradients))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_adamw_against_float64(rng):
    rate, b1, b2, eps, decay = 0.02, 0.8, 0.9, 1e-7, 0.1
    optimizer, _ = make(learning_rate=rate, weight_decay=decay, arguments={"b1": b1, "b2": b2, "eps": eps})
    start = rng.normal(size=(3, 2))
    gradients = [rng.normal(size=(3, 2)) for _ in range(5)]
    p, m, s = start, 0.0, 0.0
    for i, g in enumerate(gradients, 1):
        m, s = b1 * m + (1 - b1) * g, b2 * s + (1 - b2) * g * g
        p = p - rate * (m / (1 - b1**i) / (np.sqrt(s / (1 - b2**i)) + eps) + decay * p)
    as_tree = lambda x: {"kernel": jnp.asarray(x, jnp.float32)}  # noqa: E731
    after = run(optimizer, as_tree(start), [as_tree(g) for g in gradients])
    np.testing.assert_allclose(after["kernel"], p, rtol=1e-4, atol=1e-5)


def test_muon_treats_every_layer_as_its_own_matrix(rng):
    """Each stacked kernel moves as optax's Muon moves the layer's plain matrix, and the rest as Adam does."""
    params, gradients = tree(rng), [tree(rng) for _ in range(2)]
    optimizer, _ = make(name="contrib.muon", learning_rate=0.1)
    after = run(optimizer, params, gradients)
    plain = optax.contrib.muon(0.1)
    views = {
        ("attention", "query"): lambda x: x.reshape(4, 6),
        ("attention", "output"): lambda x: x.reshape(6, 4),
        ("feed_forward", "up"): lambda x: x,
        ("feed_forward", "down"): lambda x: x,
    }
    for (part, name), view in views.items():
        for layer in range(2):
            cut = lambda t: {"w": view(t["blocks"][part][name]["kernel"][layer])}  # noqa: B023, E731
            wanted = run(plain, cut(params), [cut(g) for g in gradients])["w"]
            np.testing.assert_allclose(cut(after)["w"], wanted, rtol=2e-3, atol=2e-4)
    adam = run(optax.nadam(0.1), params, gradients)
    for get in (
        lambda t: t["unembedding"]["kernel"],
        lambda t: t["embedding"]["table"],
        lambda t: t["blocks"]["attention_norm"]["scale"],
        lambda t: t["blocks"]["attention"]["query"]["bias"],
    ):
        np.testing.assert_allclose(get(after), get(adam), rtol=1e-4, atol=1e-5)


def test_what_muon_leaves_to_adam_has_a_rate_of_its_own_on_the_same_schedule(rng):
    """The matrices move as they would without the key; tables, norms and biases as optax's Adam moves them
    at the schedule times the key's peak."""
    params, gradients = tree(rng), [tree(rng) for _ in range(4)]
    schedule = dict(schedule="cosine", warmup_steps=2, learning_rate=0.1, name="contrib.muon")
    one, rate = make(6, **schedule)
    two, same = make(6, **schedule, adam_learning_rate=0.003)
    assert [rate(count) for count in range(6)] == [same(count) for count in range(6)]
    before, after = run(one, params, gradients), run(two, params, gradients)
    adam = run(optax.nadam(lambda count: 0.03 * rate(count)), params, gradients)

    def check(path, whole, own, wanted):
        keys = [entry.key for entry in path]
        matrix = keys[0] == "blocks" and keys[-1] == "kernel"
        np.testing.assert_allclose(own, whole if matrix else wanted, rtol=1e-4, atol=1e-6)
        assert matrix or not np.allclose(own, whole, rtol=1e-3, atol=1e-4)

    jax.tree_util.tree_map_with_path(check, before, after, adam)


def test_mask_sees_through_the_names_of_axes():
    boxed = {
        "a": {"kernel": jax.eval_shape(lambda: jnp.ones(3)), "scale": jax.eval_shape(lambda: jnp.ones(3))}
    }
    from flax import linen as nn

    boxed = jax.tree.map(lambda x: nn.LogicallyPartitioned(x, ("embed",)), boxed)
    config = OptimizerConfig(**{**CONFIG, "weight_decay": 0.5})
    treated = nn.unbox(parameter_settings(boxed, config, roles=roles_by_name))
    assert {name: each.weight_decay for name, each in treated["a"].items()} == {"kernel": 0.5, "scale": 0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "adam_w"}, r"^name: .*'adam_w'; did you mean .*adamw"),
        ({"name": "muon"}, r"^name: .*'muon'; did you mean .*contrib\.muon"),
        ({"name": "zzzz"}, r"^name: .*it has .*adamw.*contrib\.muon"),
        ({"name": "scale_by_adam"}, r"^name: "),
        ({"name": "lbfgs"}, r"^name: lbfgs cannot be used: "),
        ({"schedule": "linear"}, r"^schedule: 'linear'; expected one of 'constant', 'cosine'"),
        ({"learning_rate": -1.0}, r"^learning_rate: -1.0"),
        ({"learning_rate": float("nan")}, r"^learning_rate: nan"),
        ({"final_fraction": 1.5}, r"^final_fraction: 1.5"),
        ({"ema_decay": 1.0}, r"^ema_decay: 1.0"),
        ({"schedule": "wsd"}, r"^decay_steps: 0 .*wsd"),
        ({"arguments": {"beta1": 0.9}}, r"^arguments.beta1: adamw takes only b1, b2, "),
        ({"arguments": {"weight_decay": 0.9}}, r"^arguments.weight_decay: "),
        ({"arguments": {"b1": "high"}}, r"^arguments: adamw cannot be used with \{'b1': 'high'\}"),
        (
            {"adam_learning_rate": 0.1},
            r"^adam_learning_rate: 0.1, but adamw leaves nothing to Adam; expected 0",
        ),
        (
            {"name": "contrib.muon", "adam_learning_rate": 0.1, "learning_rate": 0.0},
            r"^adam_learning_rate: 0.1 with learning_rate 0; expected 0",
        ),
        (
            {"rules": (Rule("a", optimizer="adm"),)},
            r"^rules\[0\].optimizer: optax has no optimizer 'adm'; did",
        ),
        (
            {"rules": (Rule("a", optimizer="adam", arguments={"beta": 1}),)},
            r"^rules\[0\].arguments.beta: adam takes only b1, b2",
        ),
        (
            {"rules": (Rule("a", optimizer="contrib.schedule_free_sgd"),)},
            r"^rules\[0\].optimizer: contrib.schedule_free_sgd is for all parameters",
        ),
        (
            {"name": "contrib.muon", "adam_learning_rate": -0.1},
            r"^adam_learning_rate: -0.1; expected 0 or",
        ),
        (
            {"name": "contrib.muon", "adam_learning_rate": 0.1, "arguments": {"adam_learning_rate": 0.2}},
            r"^arguments.adam_learning_rate: there is adam_learning_rate already",
        ),
        (
            {"name": "contrib.schedule_free_adamw", "ema_decay": 0.9},
            r"^ema_decay: 0.9 with contrib.schedule_free_adamw, which has its own average; use 0",
        ),
        (
            {"name": "contrib.schedule_free_adamw", "layer_decay": 0.9},
            r"^name: contrib.schedule_free_adamw averages .*layer_decay 1, frozen_layers 0",
        ),
        (
            {"name": "contrib.schedule_free_sgd", "arguments": {"b1": 0.0}},
            r"^arguments.b1: 0.0; contrib.schedule_free_sgd .*in \(0, 1\]",
        ),
        ({"name": "contrib.schedule_free_adamw", "weight_decay": 0.1}, r"^weight_decay: 0.1 .*takes no mask"),
        ({"name": "noisy_sgd"}, r"^name: noisy_sgd cannot be used: it keeps a random key"),
        ({"name": "sm3"}, r"^name: sm3 cannot be used: it takes a number as learning rate, no "),
        (
            {"rules": (Rule("a", optimizer="sm3"),)},
            r"^rules\[0\].optimizer: sm3 cannot be used: it takes a numb",
        ),
        ({"name": "rprop"}, r"^name: rprop cannot be used: it takes a number as learning rate"),
        ({"name": "novograd", "weight_decay": 0.1}, r"^weight_decay: 0.1 .*novograd takes no mask"),
    ],
)
def test_errors_name_the_key_and_what_would_be_valid(changes, message):
    with pytest.raises(UserError, match=message) as error:
        OptimizerConfig(**{**CONFIG, **changes})
    assert "\n" not in str(error.value)


def test_schedule_must_fit_the_run():
    with pytest.raises(UserError, match=r"^optimizer.warmup_steps: 20 .*train.steps 10"):
        make(10, schedule="cosine", warmup_steps=20)


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        OptimizerConfig(**CONFIG).learning_rate = 1.0


def test_muon_treats_every_expert_as_its_own_matrix(rng):
    def as_tree(kernel):
        return {"blocks": {"feed_forward": {"experts": {"up": {"kernel": jnp.float32(kernel)}}}}}

    start, gradient = rng.normal(size=(2, 2, 3, 4, 6))
    optimizer, _ = make(name="contrib.muon", learning_rate=0.1)
    (after,) = jax.tree.leaves(run(optimizer, as_tree(start), [as_tree(gradient)]))
    for i in np.ndindex(2, 3):
        wanted = run(optax.contrib.muon(0.1), {"w": jnp.float32(start[i])}, [{"w": jnp.float32(gradient[i])}])
        np.testing.assert_allclose(after[i], wanted["w"], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("stack", ["blocks", "encoder_blocks", "decoder_blocks"])
def test_muon_takes_the_matrices_of_every_stack(stack):
    kernel = np.zeros((2, 4, 2, 3))
    params = {stack: {"attention": {"query": {"kernel": kernel}}}, "unembedding": {"kernel": kernel[0]}}
    found = matrix_dimensions(params, roles_by_name)
    assert found[stack]["attention"]["query"]["kernel"] == optax.contrib.MuonDimensionNumbers((1,), (2, 3))
    assert found["unembedding"]["kernel"] is None
