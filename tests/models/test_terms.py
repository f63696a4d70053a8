"""Terms of the loss from inside of blocks: one gradient, however the layers and the batch are run."""

import dataclasses
import functools
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import launch
from tests import runs
from tests.parameters import random_params
from transformer.layers.attention import kernels
from transformer.layers.feed_forward import FEED_FORWARDS, FeedForward
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.sums import Sum, named_terms
from transformer.training.state import State
from transformer.training.step import make_train_step
from workdir.opening import load

CONFIG = DecoderConfig(d_model=16, num_layers=3, num_heads=2, d_ff=24, max_length=16)
ROWS, LENGTH, VOCAB, EXPERTS = 8, 6, 23, 4


def apply_with_terms(model, params, tokens, **options):
    out, sown = model.apply({"params": params}, tokens, mutable=["terms"], **options)
    return out, named_terms(sown)


class Balanced(FeedForward):
    """A feed-forward that says how unevenly a row's tokens would be routed to experts, in each row."""

    @nn.compact
    def __call__(self, x_btd, **_):
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", None))
        logits = nn.Dense(EXPERTS, use_bias=False, kernel_init=init, name="router")(x_btd)
        share_be = jnp.mean(jax.nn.softmax(logits.astype(jnp.float32)), axis=1)
        self.sow("terms", "balance", Sum.of(EXPERTS * jnp.sum(share_be**2, axis=-1)))
        return super().__call__(x_btd)


class Objective:
    """The cross-entropy, and the term from inside with a weight of its own."""

    def __init__(self, config):
        self.model = Decoder(config, VOCAB)

    def loss(self, params, batch, rng, train):
        logits_btv, terms = apply_with_terms(self.model, params, batch["tokens"], train=train)
        losses_bt = optax.softmax_cross_entropy_with_integer_labels(logits_btv, batch["targets"])
        reported = jax.lax.stop_gradient(terms)  # of each layer too
        return reported | {"balance": terms["balance"], "loss": Sum.of(losses_bt)}

    def weigh(self, batch):
        return {"loss": jnp.float32(batch["tokens"].size), "balance": jnp.float32(CONFIG.num_layers * ROWS)}


@pytest.fixture(autouse=True)
def with_balanced(monkeypatch):
    made = functools.partial(Balanced, activation=jax.nn.relu)
    monkeypatch.setitem(FEED_FORWARDS, "balanced", made)


def balanced(**changes):
    return dataclasses.replace(CONFIG, feed_forward="balanced", **changes)


def step(rng, params, microbatches=1, **changes):
    experiment = Objective(balanced(**changes))
    batch = {name: rng.integers(0, VOCAB, (ROWS, LENGTH)) for name in ("tokens", "targets")}
    optimizer = optax.sgd(1.0)
    state = State.create(params, optimizer, False)
    run = make_train_step(experiment, optimizer, seed=0, microbatches=microbatches)
    return jax.jit(run)(state, batch)


@pytest.mark.thorough
def test_every_way_to_run_it_has_the_same_gradient(rng):
    params = random_params(rng, Decoder(balanced(), VOCAB), jnp.zeros((1, 1), jnp.int32))
    seed = int(rng.integers(1 << 30))
    ways = [{}, {"scan_layers": True}, {"remat": "full"}, {"microbatches": 4}]
    ways += [{"scan_layers": True, "remat": "full", "microbatches": 4}]
    first, *others = (step(np.random.default_rng(seed), params, **way) for way in ways)
    for found in others:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found[0].params, first[0].params
        )
        np.testing.assert_allclose(found[1]["balance"].mean, first[1]["balance"].mean, rtol=1e-5)
    router = first[0].params["blocks"]["feed_forward"]["router"]["kernel"]
    assert np.abs(router - params["blocks"]["feed_forward"]["router"]["kernel"]).max() > 1e-4


@pytest.mark.thorough
def test_terms_are_sums_over_layers_and_of_each(rng):
    model = Decoder(balanced(), VOCAB)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))
    tokens = rng.integers(0, VOCAB, (ROWS, LENGTH))
    out, terms = apply_with_terms(model, params, tokens)
    assert terms.keys() == {"balance", "balance/0", "balance/1", "balance/2"}
    assert float(terms["balance"].weight) == 3 * ROWS
    each = sum(float(terms[f"balance/{layer}"].total) for layer in range(3))
    np.testing.assert_allclose(terms["balance"].total, each, rtol=1e-6)
    np.testing.assert_array_equal(out, model.apply({"params": params}, tokens))


def test_asking_for_terms_changes_no_kernel(rng, monkeypatch):
    model = Decoder(balanced(), VOCAB)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))
    used = []
    attention = importlib.import_module("transformer.layers.attention.attention")
    monkeypatch.setattr(attention, "choose", lambda *x, **y: used.append(kernels.choose(*x, **y)) or used[-1])
    apply_with_terms(model, params, rng.integers(0, VOCAB, (2, LENGTH)))
    assert [kernel.__name__ for kernel in used][-3:] == ["unrolled"] * 3


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_optimises_and_reports_what_its_layers_return(tmp_path):
    source = runs.write_corpus(tmp_path / "corpus")
    keys = ["model.feed_forward=balanced", "model.scan_layers=true", "model.num_layers=2"]
    keys += ["parallel.microbatches=2", "train.batch_size=16", "train.steps=2", "train.log_every=1"]
    routers = {}
    for coefficient in (0.0, 1.0):
        workdir = tmp_path / f"run{coefficient}"
        more = [*keys, f"loss.model_terms.balance={coefficient}"] if coefficient else keys
        flags = runs.tiny(source, workdir, *(f"--config.{key}" for key in more))
        assert launch.main(flags) == 0
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        reported = [line for line in lines if "train/balance" in line]
        assert reported and all(1 <= line["train/balance"] < EXPERTS for line in reported)
        assert {"train/balance/0", "train/balance/1"} <= reported[0].keys()
        params = load(workdir)[1]
        routers[coefficient] = np.asarray(params["blocks"]["feed_forward"]["router"]["kernel"])
    assert np.abs(routers[0.0] - routers[1.0]).max() > 1e-6
