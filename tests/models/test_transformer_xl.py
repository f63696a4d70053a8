"""Recurrence over segments: what is remembered is what would be seen, and no gradient goes there."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.mixers import MIXERS, Attention
from transformer.models.transformer_xl import RELATIVE, Memory, TransformerXLConfig

CONFIG = TransformerXLConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24, memory_length=12)
VOCAB = 23


def make(rng, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    model = config.build(VOCAB)
    return config, model, {"params": random_params(rng, model, jnp.zeros((1, 1), jnp.int32))}


def texts(rng, length, documents=1):
    tokens = rng.integers(0, VOCAB, (2, length)).astype(np.int32)
    return tokens, 1 + np.sort(rng.integers(0, documents, (2, length)), axis=1).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def whole(model, variables, tokens, segments):
    """The states of all tokens, read at once."""
    return model.apply(variables, tokens, segments_bt=segments, method="hidden")


@functools.partial(jax.jit, static_argnums=(0, 5))
def in_segments(model, variables, tokens, segments, memory, size):
    """The states of all tokens, read that many at a time."""
    states = []
    for start in range(0, tokens.shape[1], size):
        part = slice(start, start + size)
        inputs = tokens[:, part], memory
        x_btd, memory = model.apply(variables, *inputs, segments_bt=segments[:, part], method="recur")
        states.append(x_btd)
    return jnp.concatenate(states, axis=1), memory


@pytest.mark.thorough
@pytest.mark.parametrize("position", RELATIVE)
@pytest.mark.parametrize("documents", [1, 3])
def test_segments_with_memory_are_the_whole_text(rng, position, documents):
    config, model, variables = make(rng, position=position, num_kv_heads=1)
    tokens, segments = texts(rng, 12, documents)
    full = whole(model, variables, tokens, segments)
    empty = Memory.empty(config, 2, config.memory_length)
    got, _ = in_segments(model, variables, tokens, segments, empty, 4)
    np.testing.assert_allclose(got, full, atol=2e-4)


def kinds(*each):
    names = tuple(f"kind_{i}" for i in range(len(each)))
    return {"layers": names, "layer_kinds": dict(zip(names, each, strict=True))}


ROTATED = {
    "linear": {"position_scaling": "linear", "position_factor": 2.0},
    "ntk": {"position_scaling": "ntk", "position_factor": 4.0},
    "yarn": {"position_scaling": "yarn", "position_factor": 4.0, "position_original_length": 64},
    "latent yarn": {"mixer": "latent", "position_scaling": "yarn", "position_factor": 4.0},
    "rope, none": kinds({}, {"position": "none"}),
    "none, rope": kinds({"position": "none"}, {}),
    "two bases": kinds({"position_base": 3.0}, {"position_base": 500.0}),
    "scaled, latent": kinds({"position_scaling": "linear", "position_factor": 3.0}, {"mixer": "latent"}),
    "transformer_xl, rope": kinds({"position": "transformer_xl"}, {}),
} | {name: {"mixer": name} for name, kind in MIXERS.items() if issubclass(kind, Attention)}
"""Rotary positions of every kind, in every mixer with keys, and layers that differ in them: each turns back
its own keys."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROTATED)
def test_keys_are_turned_back_by_the_positions_of_their_own_layer(rng, name):
    changes = {"position": "rope"} | ROTATED[name]
    config, model, variables = make(rng, **changes)
    tokens, segments = texts(rng, 12)
    full = whole(model, variables, tokens, segments)
    got, memory = in_segments(model, variables, tokens, segments, Memory.empty(config, 2, 12), 4)
    np.testing.assert_allclose(got, full, atol=2e-4)
    assert (memory.segments_bm > 0).all()
    assert all(leaf.size for leaf in jax.tree.leaves(memory))  # checkpoints have no empty arrays


SCANNED = {"scan_layers": True, "remat": "full"}
MIXED = kinds({"num_kv_heads": 1}, {"pattern": "window", "pattern_size": 5}, {"mixer": "latent"})


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"position": "alibi", "num_kv_heads": 1},
    {"position": "shaw"},
    {"position": "rope", "num_layers": 5} | MIXED,
    {"position": "rope", "num_layers": 3} | kinds({"num_kv_heads": 1}, {"position": "transformer_xl"}),
])  # fmt: skip
@pytest.mark.parametrize("kernel", ["blockwise", "unrolled", "reference"])
def test_scanned_segments_with_memory_are_the_whole_text(rng, changes, kernel):
    """And leave the same memory, by every kernel; five and three layers are not a multiple of their kinds."""
    config, model, variables = make(rng, **changes, kernel=kernel)
    scanned = dataclasses.replace(config, **SCANNED).build(VOCAB)
    tokens, segments = texts(rng, 12, documents=2)
    full = whole(model, variables, tokens, segments)
    inputs = variables, tokens, segments, Memory.empty(config, 2, config.memory_length), 4
    (got, memory), (unrolled, expected) = (in_segments(each, *inputs) for each in (scanned, model))
    np.testing.assert_allclose(got, full, atol=3e-4)
    np.testing.assert_allclose(unrolled, full, atol=3e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), memory, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ["auto", "blockwise"])
def test_scan_and_remat_have_the_same_gradients_and_dropout(rng, kernel):
    config, _, variables = make(rng, num_layers=3, dropout=0.2, attention_dropout=0.3, kernel=kernel)
    tokens, segments = texts(rng, 12)

    def loss(variables, config):
        def recur(part, memory):
            inputs = {"segments_bt": segments[:, part], "train": True, "rngs": {"dropout": jax.random.key(3)}}
            return config.build(VOCAB).apply(variables, tokens[:, part], memory, **inputs, method="recur")

        _, memory = recur(slice(0, 6), Memory.empty(config, 2, config.memory_length))
        return jnp.mean(jnp.sin(recur(slice(6, 12), memory)[0]))

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    expected, found = (gradient(variables, dataclasses.replace(config, **each)) for each in ({}, SCANNED))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), found, expected)
    without = gradient(variables, dataclasses.replace(config, attention_dropout=0.0))
    assert abs(without[0] - expected[0]) > 1e-5


@pytest.mark.thorough
def test_bfloat16_stays_near_float32(rng):
    """The states differ by roundings to 8 bits."""
    config, model, variables = make(rng, position="rope", num_kv_heads=1, **SCANNED)
    tokens, segments = texts(rng, 12)
    full = whole(model, variables, tokens, segments)
    low = dataclasses.replace(config, dtype="bfloat16")
    got, memory = in_segments(low.build(VOCAB), variables, tokens, segments, Memory.empty(low, 2, 12), 4)
    assert {leaf.dtype for leaf in jax.tree.leaves(memory.layers)} == {jnp.dtype("bfloat16")}
    assert jnp.sqrt(jnp.mean((got - full) ** 2) / jnp.mean(full**2)) < 0.1


def test_the_weights_of_a_segment_are_never_all_in_memory(rng):
    config, model, variables = make(rng, num_layers=1, position="rope", kernel="blockwise")
    t, m = 384, 640
    tokens, segments = texts(rng, t)

    def loss(variables):
        memory = Memory.empty(config, 2, m)
        return jnp.sum(model.apply(variables, tokens, memory, segments_bt=segments, method="recur")[0])

    program = str(jax.make_jaxpr(jax.grad(loss))(variables))
    assert f",{m + t}," in program and f"{t},{m + t}]" not in program


def test_no_more_is_seen_than_is_remembered(rng):
    """With one layer, token i of a segment reaches m + i tokens back, and no further."""
    config, model, variables = make(rng, num_layers=1)
    tokens, segments = texts(rng, 12)
    changed = tokens.copy()
    changed[:, :3] = (changed[:, :3] + 1) % VOCAB

    def last(tokens, length):
        return in_segments(model, variables, tokens, segments, Memory.empty(config, 2, length), 4)[0][:, 8:]

    np.testing.assert_array_equal(last(tokens, 5), last(changed, 5))
    assert (np.abs(last(tokens, 6) - last(changed, 6)).max(axis=(0, 2)) > 1e-6).all()


def test_no_gradient_goes_into_the_memory(rng):
    config, model, variables = make(rng)
    tokens, segments = texts(rng, 8)
    empty = Memory.empty(config, 2, config.memory_length)

    def second(first_variables, second_variables):
        _, memory = in_segments(model, first_variables, tokens[:, :4], segments[:, :4], empty, 4)
        x_btd, _ = in_segments(model, second_variables, tokens[:, 4:], segments[:, 4:], memory, 4)
        return jnp.sum(jnp.square(x_btd))

    of_first, of_second = jax.jit(jax.grad(second, argnums=(0, 1)))(variables, variables)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_first))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(of_second["params"]["blocks"]))


def test_rows_that_do_not_continue_forget(rng):
    config, model, variables = make(rng)
    tokens, segments = texts(rng, 8)
    empty = Memory.empty(config, 2, config.memory_length)
    _, memory = in_segments(model, variables, tokens[:, :4], segments[:, :4], empty, 4)
    memory = memory.continued(jnp.array([1, 0]))
    inputs = tokens[:, 4:], segments[:, 4:]
    got, _ = in_segments(model, variables, *inputs, memory, 4)
    fresh, _ = in_segments(model, variables, *inputs, empty, 4)
    np.testing.assert_allclose(got[1], fresh[1], atol=1e-6)
    assert np.abs(got[0] - fresh[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_length": 0}, "memory_length: 0; expected at least 1"),
        ({"position": "learned"}, "position: 'learned' is an absolute encoding"),
    ],
)
def test_what_memory_does_not_go_with_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)
