"""Mixtures of experts, against loops over tokens and experts in float64."""

import dataclasses
import functools
import itertools
import json
import math
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import special

import launch
from tests import runs
from tests.layers.test_feed_forward import ACTIVATIONS, of_up
from tests.parameters import random_params
from transformer.config import refuse_idle
from transformer.errors import UserError
from transformer.layers.feed_forward import FEED_FORWARDS
from transformer.layers.variants import grouped
from transformer.layers.variants.experts import Experts
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.sums import named_terms
from transformer.training import parallel
from transformer.training.losses.token_losses import model_terms, token_loss
from transformer.training.state import State

ROWS, LENGTH, WIDTH, HIDDEN, EXPERTS = 3, 10, 8, 12, 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Few rows, too, are multiplied in blocks, as many are."""
    monkeypatch.setattr(grouped, "SMALLEST", 2)


def make(rng, kind="gelu", experts=EXPERTS, k=2, factor=0.0, dtype="float32", rows=ROWS, router_bias=False):
    network = functools.partial(FEED_FORWARDS[kind], d_ff=HIDDEN, dtype=dtype)
    module = Experts(network, experts, k, factor, router_bias)
    x = rng.normal(size=(rows, LENGTH, WIDTH)).astype(np.float32)
    return module, random_params(rng, module, jnp.asarray(x), scale=0.7), x


def applied(module, params, x, **options):
    return jax.jit(functools.partial(module.apply, **options))({"params": params}, x)


def network(kind, params, i, x_d):
    """The feed-forward of expert i."""

    def linear(name, x):
        return x @ params[name]["kernel"][i] + params[name]["bias"][i]

    gated = "glu" in kind
    up = of_up(kind, linear("up", x_d)) if gated else 1
    hidden = ACTIVATIONS[kind](linear("gate" if gated else "up", x_d)) * up
    return linear("down", hidden)


def routed(params, x_btd, k):
    """The router's logits and probabilities (b, t, e), and for each token its k experts and their weights."""
    logits_bte = x_btd @ params["router"]["kernel"] + params["router"].get("bias", 0.0)
    p_bte = special.softmax(logits_bte, axis=-1)
    experts_btk = np.argsort(-p_bte, axis=-1, kind="stable")[..., :k]
    weights_btk = np.take_along_axis(p_bte, experts_btk, axis=-1)
    if k > 1:
        weights_btk = weights_btk / weights_btk.sum(-1, keepdims=True)
    return logits_bte, p_bte, experts_btk, weights_btk


def by_loop(kind, params, x_btd, k, capacity=math.inf, valid_bt=None):
    """What `Experts` computes, token by token, and how many choices were dropped."""
    params, x_btd = jax.tree.map(np.float64, params), np.float64(x_btd)
    _, _, experts_btk, weights_btk = routed(params, x_btd, k)
    y_btd, dropped = np.zeros_like(x_btd), 0
    for b, row in enumerate(x_btd):
        taken = np.zeros(params["router"]["kernel"].shape[1])
        for t, x_d in enumerate(row):
            for i, weight in zip(experts_btk[b, t], weights_btk[b, t], strict=True):
                if valid_bt is not None and not valid_bt[b, t]:
                    continue
                taken[i] += 1
                dropped += taken[i] > capacity
                if taken[i] <= capacity:
                    y_btd[b, t] += weight * network(kind, params["experts"], i, x_d)
    return y_btd, dropped


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_against_float64(kind, k, rng):
    module, params, x = make(rng, kind, k=k, router_bias=k > 1)
    assert ("bias" in params["router"]) == (k > 1)
    expected, _ = by_loop(kind, params, x, k)
    whole = dataclasses.replace(module, capacity_factor=float(EXPERTS), parent=None)

    for each in (module, whole):
        np.testing.assert_allclose(applied(each, params, x, train=True), expected, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("factor", [0.0, 0.5])
@pytest.mark.parametrize("k", [1, 2])
def test_gradients_against_differences(k, factor, rng):
    """In a random direction of parameters and input, which changes no choice."""
    module, params, x = make(rng, "swiglu", k=k, factor=factor)
    capacity = math.floor(k * LENGTH / EXPERTS * factor) if factor else math.inf
    cotangent = rng.normal(size=x.shape)

    def loss(params, x):
        return jnp.sum(applied(module, params, x, train=True) * cotangent)

    gradients = jax.jit(jax.grad(loss, (0, 1)))(params, x)
    direction = jax.tree.map(lambda g: rng.normal(size=g.shape), gradients)
    found = sum(np.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradients, direction)), strict=True))

    def moved(step):
        given = jax.tree.map(lambda v, d: np.float64(v) + step * d, (params, x), direction)
        return np.sum(by_loop("swiglu", *given, k, capacity)[0] * cotangent)

    expected = (moved(1e-6) - moved(-1e-6)) / 2e-6
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_every_leaf_has_the_gradient_of_a_dense_mixture(factor, rng):
    """Whose experts all compute all tokens, with weights of 0 for those not chosen."""
    module, params, x = make(rng, "geglu", factor=factor)
    capacity = math.floor(2 * LENGTH / EXPERTS * factor) if factor else LENGTH
    cotangent = rng.normal(size=x.shape).astype(np.float32)

    def dense(params, x):
        p_bte = jax.nn.softmax(x @ params["router"]["kernel"])
        chosen_bte = p_bte >= jnp.sort(p_bte)[..., -2, None]
        w_bte = jnp.where(chosen_bte, p_bte, 0)
        w_bte /= w_bte.sum(-1, keepdims=True)
        w_bte = jnp.where(jnp.cumsum(chosen_bte, axis=1) <= capacity, w_bte, 0)

        def linear(name, x):
            return x @ params["experts"][name]["kernel"] + params["experts"][name]["bias"][:, None]

        x = x[:, None]
        y_betd = linear("down", jax.nn.gelu(linear("gate", x)) * linear("up", x))
        return jnp.sum(jnp.einsum("bte,betd->btd", w_bte, y_betd) * cotangent)

    def loss(params, x):
        return jnp.sum(applied(module, params, x, train=True) * cotangent)

    found, expected = (jax.jit(jax.grad(f, (0, 1)))(params, jnp.asarray(x)) for f in (loss, dense))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, expected)


@pytest.mark.parametrize("k", [1, 2])
def test_a_full_expert_drops_the_late_tokens_in_training_alone(k, rng):
    module, params, x = make(rng, k=k, factor=0.6)
    capacity = math.floor(k * LENGTH / EXPERTS * 0.6)
    expected, dropped = by_loop("gelu", params, x, k, capacity)
    assert dropped > 0
    np.testing.assert_allclose(applied(module, params, x, train=True), expected, atol=1e-4)
    every, _ = by_loop("gelu", params, x, k)
    np.testing.assert_allclose(applied(module, params, x), every, atol=1e-4)


def test_no_token_depends_on_a_later_one(rng):
    module, params, x = make(rng, factor=0.5)
    changed = x.copy()
    changed[:, 6:] = rng.normal(size=changed[:, 6:].shape)
    first, second = (module.apply({"params": params}, each, train=True) for each in (x, changed))
    np.testing.assert_array_equal(first[:, :6], second[:, :6])
    assert np.abs(first[:, 6:] - second[:, 6:]).max() > 0.1


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_one_expert_is_the_feed_forward(factor, rng):
    module, params, x = make(rng, "swiglu", experts=1, k=1, factor=factor)
    dense = jax.tree.map(lambda leaf: leaf[0], params["experts"])
    expected = module.network().apply({"params": dense}, x)
    np.testing.assert_allclose(applied(module, params, x, train=True), expected, atol=1e-5)


@pytest.mark.parametrize("factor", [0.0, pytest.param(1.0, marks=pytest.mark.thorough)])
def test_bfloat16_products_with_gradients_in_float32(factor, rng):
    """Beside the same in float32: within the rounding of the operands; the gradients are not bfloat16."""
    low, params, x = make(rng, factor=factor, dtype="bfloat16")
    high = dataclasses.replace(
        low, network=functools.partial(FEED_FORWARDS["gelu"], d_ff=HIDDEN), parent=None
    )

    def loss(module, params):
        y = applied(module, params, jnp.asarray(x), train=True)
        return jnp.sum(y.astype(jnp.float32) ** 2) / x.size, y

    (found, y), (expected, z) = (
        jax.jit(jax.grad(functools.partial(loss, m), has_aux=True))(params) for m in (low, high)
    )
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(y.astype(jnp.float32) - z) < 0.02 * np.linalg.norm(z)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float32
        assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(b)
    for name in ("up", "down"):
        kernel = found["experts"][name]["kernel"]
        assert np.mean(kernel == kernel.astype(jnp.bfloat16).astype(jnp.float32)) < 0.2


@pytest.mark.parametrize("k", [1, 2])
def test_a_document_has_its_own_capacity_and_padding_takes_none(k, rng):
    """As if each were in a row by itself; segments may be in any order, with padding between."""
    module, params, x = make(rng, k=k, factor=0.6)
    segments = np.array([[1] * 10, [0] * 2 + [7] * 6 + [3] * 2, [1, 0, 2, 2, 1, 1, 0, 2, 1, 1]])
    found = applied(module, params, x, segments_bt=jnp.asarray(segments), train=True)
    expected, dropped = np.zeros_like(found), 0
    for b, row in enumerate(segments):
        for number in {*row} - {0}:
            here = row == number
            capacity = math.floor(k * here.sum() / EXPERTS * 0.6)
            (expected[b, here],), more = by_loop("gelu", params, x[b, here][None], k, capacity)
            dropped += more
    assert dropped > 5
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(("factor", "k", "experts"), [(1.25, 2, 8), (0.3, 1, 3), (0.1, 3, 7), (4.0, 1, 3)])
def test_documents_of_a_row_have_no_more_than_its_capacity(factor, k, experts):
    """However it is divided; and no more is lost by rounding than down to a whole number."""
    capacities = Experts(None, experts, k, factor).capacities(60)
    exact = [min(n, Fraction(str(factor)) * n * k / experts) for n in range(61)]
    assert all(0 <= have - given < 1 for given, have in zip(capacities, exact, strict=True))
    for first, rest in itertools.product(range(31), repeat=2):
        assert capacities[first] + capacities[rest] <= capacities[first + rest]


def test_documents_that_all_choose_one_expert_have_their_slots(rng):
    """The first tokens of each, up to the last slot of a row."""
    module, params, x = make(rng, k=1, factor=1.0)
    x = np.abs(x)
    params["router"]["kernel"] = np.zeros_like(params["router"]["kernel"])
    params["router"]["kernel"][:, 2] = 1.0
    segments = np.array([[1] * 4 + [2] * 6, [1] * 8 + [2] * 2, [1, 2] * 5])
    found = applied(module, params, x, segments_bt=jnp.asarray(segments), train=True)
    served = np.zeros(segments.shape)
    served[0, [0, 4]] = served[1, [0, 1]] = served[2, [0, 1]] = 1
    weight_bt = routed(params, x, 1)[-1][..., 0]
    expected = network("gelu", params["experts"], 2, x) * (served * weight_bt)[..., None]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_capacity_of_no_token_is_refused(rng):
    module, params, x = make(rng, factor=0.15)
    message = r"^model.capacity_factor: 0.15; of 10 tokens .* would serve none; expected 4/20 or more, or 0"
    with pytest.raises(UserError, match=message):
        applied(module, params, x, train=True)
    applied(dataclasses.replace(module, capacity_factor=0.2, parent=None), params, x, train=True)


@pytest.mark.parametrize("k", [1, 2])
def test_a_row_of_one_document_is_the_same_with_and_without_its_number(k, rng):
    """And so are its gradients."""
    module, params, x = make(rng, k=k, factor=0.6)
    cotangent = rng.normal(size=x.shape).astype(np.float32)

    def loss(params, x, segments_bt=None):
        return jnp.sum(applied(module, params, x, segments_bt=segments_bt, train=True) * cotangent)

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    found = gradient(params, jnp.asarray(x), jnp.full(x.shape[:2], 4))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, gradient(params, jnp.asarray(x))
    )


@pytest.mark.parametrize("k", [1, 2])
def test_terms_are_means_over_rows_without_padding(k, rng):
    module, params, x = make(rng, k=k)
    segments = np.array([[1] * 10, [1] * 6 + [0] * 4, [0] * 10])
    options = {"segments_bt": jnp.asarray(segments), "mutable": ["terms"]}
    terms = named_terms(applied(module, params, x, **options)[1])
    logits, p, experts, _ = routed(jax.tree.map(np.float64, params), np.float64(x), k)
    balance = z = 0.0
    for b, n in enumerate((10, 6)):
        fraction = np.bincount(experts[b, :n].ravel(), minlength=EXPERTS) / (n * k)
        balance += EXPERTS * fraction @ p[b, :n].mean(0)
        z += np.mean(special.logsumexp(logits[b, :n], axis=-1) ** 2)
    for name, total in (("load_balance", balance), ("router_z", z)):
        np.testing.assert_allclose(terms[name].total, total, rtol=1e-4)
        assert terms[name].weight == ROWS
    assert terms.keys() == {"load_balance", "router_z"}


def test_a_uniform_router_is_balanced(rng):
    module, params, x = make(rng)
    params["router"]["kernel"] *= 0.0
    terms = named_terms(applied(module, params, x, mutable=["terms"])[1])
    np.testing.assert_allclose(terms["load_balance"].mean, 1.0, rtol=1e-6)
    np.testing.assert_allclose(terms["router_z"].mean, np.log(EXPERTS) ** 2, rtol=1e-5)


CONFIG = DecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=32, max_length=16, num_experts=4)
STEPS, VOCAB = 20, 32


def state(params):
    return State(jnp.zeros((), jnp.int32), params, (), None, jnp.zeros((), jnp.int32))


def curve(axes, rows=8, documents=(8,), **changes):
    """The losses of training a decoder over a mesh on rows of documents, and the compiled step."""
    model = Decoder(dataclasses.replace(CONFIG, feed_forward="swiglu", use_bias=True, **changes), VOCAB)
    starts = np.random.default_rng(0).integers(0, VOCAB, (STEPS, rows, 1))
    tokens = np.int32((starts + 3 * np.arange(8)) % VOCAB)
    segments = np.repeat(np.arange(len(documents)) + 1, documents)
    boxed = jax.eval_shape(model.init, jax.random.key(0), tokens[0])["params"]
    grid = parallel.make_mesh(parallel.MeshConfig(**{"data": 1} | axes), jax.devices()[: 8 if axes else 1])
    shardings = parallel.state_shardings(state(boxed), grid, parallel.DEFAULT).params
    params = nn.unbox(model.init(jax.random.key(0), tokens[0])["params"])
    params = jax.device_put(params, shardings)

    def loss(params, tokens):
        options = {"segments_bt": jnp.broadcast_to(segments, tokens.shape), "mutable": ["terms"]}
        logits, sown = model.apply({"params": params}, tokens, train=True, **options)
        nll = token_loss(logits[:, :-1], tokens[:, 1:], VOCAB)[0]
        return nll.mean() + 0.01 * named_terms(sown)["load_balance"].mean

    def step(params, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradients), value

    losses = []
    with parallel.placed(grid, parallel.DEFAULT):
        sharding = parallel.batch_sharding(grid)
        batches = [parallel.put_batch({"tokens": each}, sharding)["tokens"] for each in tokens]
        program = jax.jit(step, out_shardings=(shardings, None)).lower(params, batches[0]).compile()
        for batch in batches:
            params, value = program(params, batch)
            losses.append(float(value))
    return losses, program.as_text()


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "documents"), [(0.0, (8,)), (1.0, (8,)), (1.0, (5, 3))])
def test_eight_devices_train_as_one_does(factor, documents):
    """With numbers that are always the same: a rounding error may turn a choice between equal experts."""
    keys = {"capacity_factor": factor, "documents": documents}
    expected, _ = curve({}, **keys)
    assert expected[0] - expected[-1] > 0.05
    for axes in (
        {"data": 2, "expert": 4},
        {"expert": 2, "fsdp": 2, "tensor": 2},
        {"fsdp": 4, "context": 2},
        {"expert": 2, "context": 2, "tensor": 2},
        {"context": 8},
    ):
        found, _ = curve(axes, **keys)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    found, _ = curve({"expert": 4, "data": 2}, scan_layers=True, remat="full", **keys)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_beside_context_experts_compute_the_tokens_of_a_device():
    """Of 24 rows of 8 tokens over two and four devices: 12 rows, 2 tokens of each, two choices of a token."""
    _, program = curve({"data": 2, "context": 4}, rows=24)
    sizes = set(re.findall(r"\d+", " ".join(re.findall(r" = \w+\[([\d,]+)\]", program))))
    assert "48" in sizes and not {"192", "384"} & sizes


@pytest.mark.thorough
@pytest.mark.parametrize("documents", [(8,), (5, 3)])
def test_tokens_go_to_the_experts_and_kernels_stay(documents):
    """With a capacity: all-to-alls of tokens, and no gather of kernels or tokens in the compiled step."""
    _, program = curve({"data": 2, "expert": 4}, capacity_factor=1.0, documents=documents)
    assert "all-to-all" in program and "all-gather" not in program


def test_experts_are_divided_over_their_axis():
    boxed = jax.eval_shape(Decoder(CONFIG, VOCAB).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    grid = parallel.make_mesh(parallel.MeshConfig(data=1, expert=2, fsdp=2, tensor=2))
    blocks = parallel.state_shardings(state(boxed["params"]), grid, parallel.DEFAULT).params["blocks"]
    kernels = blocks["feed_forward"]["experts"]
    assert kernels["up"]["kernel"].spec == jax.P(None, "expert", ("fsdp", "context"), "tensor")
    assert kernels["down"]["kernel"].spec == jax.P(None, "expert", "tensor", ("fsdp", "context"))
    assert "expert" not in str(blocks["attention"]["query"]["kernel"].spec)
    grid = parallel.make_mesh(parallel.MeshConfig(data=1, expert=8))
    with pytest.raises(
        UserError, match=r"mesh.expert: 8 devices do not divide dimension 1 \('expert', 4 wide"
    ):
        parallel.state_shardings(state(boxed["params"]), grid, parallel.DEFAULT)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_experts": 1}, r"^experts_per_token: 2; num_experts is 1"),
        ({"num_experts": -1}, r"^num_experts: -1"),
        ({"capacity_factor": -1.0, "num_experts": 2}, r"^capacity_factor: -1"),
        ({"experts_per_token": 1}, r"^config.experts_per_token: 1 does nothing with num_experts 0"),
        ({"capacity_factor": 1.0}, r"^config.capacity_factor: 1.0 does nothing with num_experts 0"),
        (
            {"num_experts": 4, "feed_forward": "none"},
            r"^config.num_experts: 4 does nothing with feed_forward 'none'",
        ),
    ],
)
def test_impossible_and_idle_keys_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        refuse_idle(DecoderConfig(**values))


def test_kinds_of_layers_may_have_experts_or_none(rng):
    kinds = {"dense": {"num_experts": 0}, "mixed": {}}
    model = Decoder(dataclasses.replace(CONFIG, layers=("dense", "mixed"), layer_kinds=kinds), VOCAB)
    tokens = rng.integers(0, VOCAB, (2, 5))
    params = random_params(rng, model, tokens)
    assert "experts" in params["blocks"]["mixed"]["feed_forward"]
    assert "up" in params["blocks"]["dense"]["feed_forward"]
    terms = named_terms(applied(model, params, tokens, mutable=["terms"])[1])
    assert {"load_balance", "load_balance/1", "router_z/1"} <= terms.keys()
    assert terms["load_balance"].weight == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize(
    "more",
    [
        [],
        ["model.capacity_factor=1.25", "model.scan_layers=true", "parallel.microbatches=2"],
        ["model.capacity_factor=1.25", "parallel.mesh.data=2", "parallel.mesh.expert=4"],
    ],
)
def test_a_run_trains_and_samples(tmp_path, capfd, more):
    source = runs.write_corpus(tmp_path / "corpus")
    keys = ["model.num_experts=4", "loss.model_terms.load_balance=0.01", "train.batch_size=16", *more]
    keys += ["train.steps=4", "train.log_every=1", "optimizer.name=contrib.muon"]
    workdir = tmp_path / "run"
    assert launch.main(runs.tiny(source, workdir, *(f"--config.{key}" for key in keys))) == 0
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < losses[0]
    balances = [line["train/load_balance"] for line in lines if "train/load_balance" in line]
    assert balances and all(0.005 < each < 0.04 for each in balances)  # with its coefficient
    assert all("train/router_z" in line for line in lines if "train/loss" in line)
    capfd.readouterr()
    assert launch.main([f"--workdir={workdir}", "--mode=predict", "--prompt=the"]) == 0
    assert capfd.readouterr().out.strip()


@pytest.mark.thorough
def test_the_terms_of_microbatches_are_those_of_the_batch(rng):
    module, params, x = make(rng, rows=4)
    segments = np.array([[1] * 10, [1] * 6 + [0] * 4, [0] * 10, [1] * 9 + [0]])
    coefficients = {"load_balance": 0.1, "router_z": 0.2}

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def terms(start, stop):
        rows = slice(start, stop)
        options = {"segments_bt": jnp.asarray(segments[rows]), "mutable": ["terms"]}
        sown = applied(module, params, x[rows], **options)[1]
        return model_terms(sown, len(x[rows]), coefficients)

    whole, first, second = terms(0, 4), terms(0, 3), terms(3, 4)
    for name in coefficients:
        np.testing.assert_allclose((first[name] + second[name]).mean, whole[name].mean, rtol=1e-6)
