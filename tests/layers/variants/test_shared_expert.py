"""A mixture of experts beside one that computes every token, against a loop over tokens in float64."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import launch
from tests import runs
from tests.decoding import test_incremental as incremental
from tests.layers.test_feed_forward import ACTIVATIONS
from tests.layers.variants import test_experts as experts
from tests.parameters import random_params
from transformer.config import refuse_idle
from transformer.errors import UserError
from transformer.layers.feed_forward import FEED_FORWARDS
from transformer.layers.variants.shared_expert import SharedExperts
from transformer.models.decoder import DecoderConfig
from transformer.sums import named_terms

SHARED = 5
KEYS = {"num_experts": 4, "feed_forward": "swiglu", "shared_d_ff": SHARED, "shared_gate": True}


def make(rng, kind="swiglu", factor=0.0, gate=True, dtype="float32"):
    network = functools.partial(FEED_FORWARDS[kind], d_ff=experts.HIDDEN, dtype=dtype)
    module = SharedExperts(network, experts.EXPERTS, 2, factor, False, SHARED, gate)
    x = rng.normal(size=(experts.ROWS, experts.LENGTH, experts.WIDTH)).astype(np.float32)
    return module, random_params(rng, module, jnp.asarray(x), scale=0.7), x


def shared(kind, params, x, gate):
    params, x = jax.tree.map(np.float64, params), np.float64(x)
    kernels = jax.tree.map(lambda leaf: leaf[None], params["shared"])
    y = experts.network(kind, kernels, 0, x)
    return y / (1 + np.exp(-x @ params["shared_gate"]["kernel"])) if gate else y


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_against_float64(rng, kind, gate):
    """With a capacity, too, which the shared one does not have; the terms are those of the experts alone."""
    assert kind in ACTIVATIONS
    for factor, capacity in ((0.0, np.inf), (0.5, 2)):
        module, params, x = make(rng, kind, factor, gate)
        assert params["shared"]["up"]["kernel"].shape == (experts.WIDTH, SHARED)
        assert ("shared_gate" in params) == gate
        mixed, dropped = experts.by_loop(kind, params, x, 2, capacity)
        assert (dropped > 0) == (factor > 0)
        y, sown = experts.applied(module, params, x, train=True, mutable=["terms"])
        np.testing.assert_allclose(y, mixed + shared(kind, params, x, gate), atol=1e-4)
        assert named_terms(sown).keys() == {"load_balance", "router_z"}


def test_every_parameter_has_a_finite_gradient(rng):
    module, params, x = make(rng)
    loss = jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(module.apply({"params": params}, x)))))
    for leaf in jax.tree.leaves(loss(params)):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0


def test_bfloat16_stays_bfloat16(rng):
    module, params, x = make(rng, dtype="bfloat16")
    low = experts.applied(module, params, jnp.bfloat16(x))
    exact, _, _ = make(rng)
    assert low.dtype == jnp.bfloat16
    wanted = experts.applied(exact, params, x)
    assert np.abs(np.float32(low) - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.thorough
def test_steps_are_the_whole(rng):
    incremental.check_steps(rng, *incremental.make(rng, **KEYS))


@pytest.mark.thorough
def test_scan_remat_and_packing_change_nothing(rng):
    model, params = incremental.make(rng, **KEYS)
    tokens = rng.integers(0, incremental.VOCAB, (2, 9)).astype(np.int32)
    rows = {
        "segments_bt": np.repeat([[1, 2]] * 2, [4, 5], axis=1),
        "positions_bt": np.r_[0:4, 0:5][None] + [[0]] * 2,
    }

    def value(params, **changes):
        other = dataclasses.replace(model.config, **changes).build(incremental.VOCAB)
        logits = other.apply({"params": params}, tokens, **rows)
        return jnp.mean(jnp.sin(logits)), logits

    whole = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    looped = functools.partial(value, scan_layers=True, remat="full")
    again = jax.jit(jax.value_and_grad(looped, has_aux=True))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), whole, again)
    alone = jax.jit(model.apply)({"params": params}, tokens[:, 4:])
    np.testing.assert_allclose(whole[0][1][:, 4:], alone, atol=2e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shared_d_ff": 8}, r"^config.shared_d_ff: 8 does nothing with num_experts 0"),
        (
            {"num_experts": 4, "shared_gate": True},
            r"^config.shared_gate: True does nothing with shared_d_ff",
        ),
        ({"num_experts": 4, "shared_d_ff": -1}, r"^shared_d_ff: -1"),
    ],
)
def test_impossible_and_idle_keys_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        refuse_idle(DecoderConfig(**values))


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_trains_with_muon_over_devices_and_samples(tmp_path, capfd):
    """With experts, tensors and rows divided, in kinds of layers with and without experts."""
    keys = ["model.num_experts=4", "model.shared_d_ff=16", "model.shared_gate=true", "model.num_layers=2"]
    keys += ['model.layers=("dense","mixed")', 'model.layer_kinds={"dense":{"num_experts":0},"mixed":{}}']
    keys += [
        "parallel.mesh.data=2",
        "parallel.mesh.expert=2",
        "parallel.mesh.tensor=2",
        "train.batch_size=16",
    ]
    keys += ["train.batch_size=16", "train.steps=4", "train.log_every=1", "optimizer.name=contrib.muon"]
    source, workdir = runs.write_corpus(tmp_path / "corpus"), tmp_path / "run"
    assert launch.main(runs.tiny(source, workdir, *(f"--config.{key}" for key in keys))) == 0
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < losses[0]
    capfd.readouterr()
    assert launch.main([f"--workdir={workdir}", "--mode=predict", "--prompt=the"]) == 0
    assert capfd.readouterr().out.strip()
