"""Recurrent layers beside attention: one function however it is run, trained, stopped and decoded."""

import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.decoding import test_incremental as incremental
from tests.experiments.test_objectives import run_of, values_of
from tests.layers.test_state_mixers import STATES
from tests.parameters import random_params
from tests.test_resume import Send
from transformer.layers.mixers import chunked_state
from transformer.models.decoder import DecoderConfig, DecoderStepper

VOCAB = incremental.VOCAB
CONFIG = DecoderConfig(d_model=16, num_layers=5, num_heads=4, d_ff=24, max_length=32)


def hybrid(mixer):
    """Three recurrent layers, then one of attention, as in Qwen3-Next; the fifth begins a second round."""
    kinds = {mixer: {"mixer": mixer}, "full": {"num_kv_heads": 2}}
    return {"layers": (mixer, mixer, mixer, "full"), "layer_kinds": kinds}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks of 8 tokens, so that rows have several."""
    monkeypatch.setattr(chunked_state, "CHUNK", 8)
    monkeypatch.setattr(chunked_state, "BLOCK", 4)


def make(rng, mixer, **changes):
    model = dataclasses.replace(CONFIG, **hybrid(mixer), **changes).build(VOCAB)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", STATES)
def test_steps_are_the_whole(rng, mixer):
    incremental.check_steps(rng, *make(rng, mixer))


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", STATES)
def test_generated_tokens_are_those_of_the_whole(rng, mixer):
    """Greedily, after ragged prompts."""
    model, params = make(rng, mixer)
    tokens, lengths = incremental.prompts(rng, [9, 4])
    stepper = DecoderStepper.of(model, params)
    (first, cache) = jax.jit(lambda: stepper.prefill(tokens, lengths, 6))()
    step, texts = jax.jit(stepper.step), [tokens[i, :n].tolist() for i, n in enumerate(lengths)]
    full = jax.jit(lambda padded: model.apply({"params": params}, padded)[..., :VOCAB])
    logits = first
    for _ in range(6):
        padded = np.stack([np.pad(text, (0, 16 - len(text))) for text in texts])
        expected = np.asarray(full(padded))[np.arange(2), [len(text) - 1 for text in texts]]
        np.testing.assert_allclose(logits, expected, atol=2e-4)
        new_b = np.argmax(expected, axis=-1).astype(np.int32)
        texts = [[*text, int(new)] for text, new in zip(texts, new_b, strict=True)]
        logits, cache = step(new_b, cache)


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", STATES)
def test_scan_remat_and_packing_change_nothing(rng, mixer):
    """Nor do they change gradients; documents of a packed row are as they are alone."""
    model, params = make(rng, mixer)
    tokens = rng.integers(0, VOCAB, (2, 20)).astype(np.int32)
    rows = {
        "segments_bt": np.repeat([[1, 2], [1, 2]], [9, 11], axis=1),
        "positions_bt": np.r_[0:9, 0:11][None].repeat(2, 0),
    }

    def loss(params, model):
        logits = model.apply({"params": params}, tokens, **rows)
        return jnp.mean(jnp.sin(logits)), logits

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    expected = gradient(params, model)
    leaves = jax.tree.leaves(expected[1])
    assert all(np.isfinite(leaf).all() for leaf in leaves) and sum(np.any(leaf) for leaf in leaves) > 10
    alone = jax.jit(model.apply)({"params": params}, tokens[:, 9:])
    np.testing.assert_allclose(expected[0][1][:, 9:], alone, atol=2e-4)
    for changes in ({"scan_layers": True}, {"remat": "full"}, {"scan_layers": True, "remat": "full"}):
        other = dataclasses.replace(model.config, **changes).build(VOCAB)
        changed = gradient(params, other)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4), changed, expected)


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("mixer", STATES)
def test_microbatches_and_devices_change_nothing(mixer, tmp_path):
    """After a step of gradient descent with rate 1 the parameters are the same."""
    values, states = values_of("language_modeling", tmp_path), []
    values["model"].update(hybrid(mixer), num_layers=4)
    for number, (devices, parts) in enumerate([(1, 1), (1, 2), (2, 1)]):
        run = run_of(values, tmp_path / str(number), devices, **{"parallel.microbatches": str(parts)})
        with run.placed():
            first = run.first_state()
            before = jax.device_get(first.params)
            states.append(jax.device_get(run.jitted()(first, run.put(run.loader.batch_at(0)))[0].params))
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), before, states[0]))
    assert max(moved) > 1e-3
    for params in states[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), params, states[0])


KINDS = (
    '--config.model.layers=("gated_delta", "gated_delta", "gated_delta", "full")',
    '--config.model.layer_kinds={"gated_delta": {"mixer": "gated_delta"}, "full": {}}',
    "--config.model.num_layers=4",
)
STOPS = ("--config.train.steps=6", "--config.train.checkpoint_every=3", "--config.model.dropout=0.1")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize(
    "more", [(), ("--config.model.scan_layers=true", "--config.model.remat=full")], ids=["plain", "scanned"]
)
def test_a_stopped_run_resumes_bitwise(tmp_path, source, more):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    runs.train(source, straight, *KINDS, *STOPS, *more)
    assert runs.train(source, stopped, *KINDS, *STOPS, *more, hooks=[Send(4, signal.SIGTERM)]) == "SIGTERM"
    assert runs.state(stopped).step < 6
    runs.train(source, stopped, *KINDS, *STOPS, *more)
    resumed, expected = runs.state(stopped), runs.state(straight)
    assert resumed.step == 6
    jax.tree.map(np.testing.assert_array_equal, resumed, expected)
