"""Incremental decoding with a cache equals the full forward pass over everything so far."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.decoding.generation import generate
from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.normalization import NORMS
from transformer.models.decoder import DecoderConfig, DecoderStepper
from transformer.training import parallel
from transformer.training.state import State

CONFIG = DecoderConfig(d_model=16, num_layers=2, num_heads=4, d_ff=24, use_bias=True, max_length=32)
VOCAB = 23
HEADS = {
    "narrow": {},
    "wide": {"head_dim": 16},
    "grouped": {"num_kv_heads": 2},
    "multi_query": {"num_kv_heads": 1},
}


def local_and(name, **keys):
    """Every other layer is of another kind than the model's keys say."""
    return {"layers": ("local", name), "layer_kinds": {"local": {}, name: keys}}


FULL_EVERY_2 = local_and("full", pattern="full")


def make(rng, **changes):
    model = dataclasses.replace(CONFIG, **changes).build(VOCAB)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


def prompts(rng, lengths):
    tokens = rng.integers(0, VOCAB, (len(lengths), max(lengths))).astype(np.int32)
    return tokens, np.array(lengths, np.int32)


def check_steps(rng, model, params, atol=2e-4):
    """Feeds ragged prompts and then random tokens, and compares all logits with the full forward's."""
    tokens, lengths = prompts(rng, [7, 11, 5, 9])
    lengths, new_nb = (
        lengths - 4,
        np.stack([row[n - 4 : n] for row, n in zip(tokens, lengths, strict=True)], 1),
    )
    stepper = DecoderStepper.of(model, params)

    @jax.jit
    def both(stepper, params):
        def step(cache, new_b):
            logits_bv, cache = stepper.step(new_b, cache)
            return cache, logits_bv

        first, cache = stepper.prefill(tokens[:, :7], lengths, 4)
        cache, others = jax.lax.scan(step, cache, new_nb)
        full = model.apply({"params": params}, jnp.asarray(tokens))[..., :VOCAB]
        return jnp.concatenate([first[None], others]), full, cache.lengths_b

    stepped, full, read = both(stepper, params)
    assert stepped.dtype == jnp.float32
    np.testing.assert_array_equal(read, lengths + 4)
    for i, logits in enumerate(stepped):
        np.testing.assert_allclose(logits, full[np.arange(4), lengths + i - 1], atol=atol)


EVERY_TWO = [
    (position, [*NORMS][(i + j) % len(NORMS)], heads)
    for (i, position), (j, heads) in itertools.product(enumerate(POSITIONS), enumerate(HEADS))
]
"""Positions, norms and numbers of heads: every two of them together, and not all three."""


@pytest.mark.parametrize(
    "position,norm,heads",
    [pytest.param(*each, marks=[pytest.mark.thorough] * (i % 8 > 0)) for i, each in enumerate(EVERY_TWO)],
)
def test_every_position_norm_and_attention(rng, position, norm, heads):
    check_steps(rng, *make(rng, position=position, norm=norm, num_layers=1, **HEADS[heads]))


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"norm_placement": "post"},
    {"norm_placement": "sandwich"},
    {"feed_forward": "swiglu", "tie_embeddings": False, "scale_embeddings": True},
    {"feed_forward": "none", "norm": "none"},
    {"parallel_sublayers": True, "feed_forward": "relu2", "logit_soft_cap": 2.0},
    {"skips": True, "num_layers": 3},
    {"skips": True, "num_layers": 4, **FULL_EVERY_2, "pattern": "window", "pattern_size": 3},
    {"value_embeddings": (1, 0), "skips": True, "num_kv_heads": 2, "num_layers": 3},
    {"value_embeddings": (-1,), "mixer": "latent", "position": "rope",
     **local_and("heads", mixer="multi_head", num_kv_heads=1)},
    {"position_fraction": 0.5, "num_kv_heads": 2, "logit_soft_cap": 2.0, "tie_embeddings": False},
    {"pattern": "window", "layers": ("two", "four"), "layer_kinds": {"two": {"pattern_size": 2},
                                                                     "four": {"pattern_size": 4}}},
    {"kernel": "reference"},
    {"kernel": "blockwise"},
    {"mixer": "latent", "position": "rope"},
    {"mixer": "plain", "position": "alibi"},
    {"num_experts": 3},
    {"num_experts": 3, "experts_per_token": 1, "capacity_factor": 0.5, "feed_forward": "swiglu"},
    {"qk_norm": True, "soft_cap": 2.0, "sinks": True},
    {"pattern": "window", "pattern_size": 3, **local_and("full", pattern="full", position="none")},
    {"pattern": "window", "pattern_size": 2, "pattern_extra": 2, "scan_layers": True, **FULL_EVERY_2},
    {"pattern": "window", "pattern_size": 9},  # more than the prompts have
    {"pattern": "strided", "pattern_size": 3},
    {"pattern": "fixed", "pattern_size": 4},
    {"pattern": "global", "pattern_size": 2, "pattern_extra": 2},
    {"pattern": "blocks", "pattern_size": 2},
    {"scan_layers": True, "dropout": 0.5, "attention_dropout": 0.5, "embedding_dropout": 0.5},
])  # fmt: skip
def test_every_other_variant(rng, changes):
    check_steps(rng, *make(rng, **changes))


def test_bfloat16_stays_near(rng):
    model, params = make(rng, dtype="bfloat16")
    check_steps(rng, model, params, atol=0.3)


@pytest.mark.thorough
@pytest.mark.parametrize("position", POSITIONS)
def test_greedy_generation_recomputed_from_nothing_each_step(rng, position):
    model, params = make(rng, position=position)
    tokens, lengths = prompts(rng, [2, 6, 4])
    rngs = jax.random.split(jax.random.key(0), 3)
    new, _ = generate(
        DecoderStepper.of(model, params), tokens, lengths, rngs, max_new_tokens=6, temperature=None
    )
    full = jax.jit(lambda tokens: model.apply({"params": params}, tokens)[0, :, :VOCAB])
    for row, length, got in zip(tokens, lengths, np.asarray(new), strict=True):
        text = np.zeros(12, np.int32)
        text[:length] = row[:length]
        for i, token in enumerate(got):
            logits = np.asarray(full(text[None])[length + i - 1])
            assert logits[token] >= logits.max() - 1e-4  # a tie, to rounding, may go either way
            text[length + i] = token


def test_reordering_moves_rows(rng):
    model, params = make(rng)
    tokens, lengths = prompts(rng, [3, 7, 1, 5])
    order, new = np.array([2, 2, 0, 3]), np.array([4, 8, 15, 16], np.int32)

    @jax.jit
    def both(stepper):
        _, cache = stepper.prefill(tokens, lengths, 2)
        _, expected = stepper.prefill(tokens[order], lengths[order], 2)
        return stepper.step(new, stepper.reorder(cache, order)), stepper.step(new, expected)

    got, expected = both(DecoderStepper.of(model, params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"position": "rope", "num_kv_heads": 2},
    {"position": "learned", "norm_placement": "post"},
    {"kernel": "reference"},
    {"pattern": "window", "pattern_size": 3},
    {"pattern": "window", "pattern_size": 2, "pattern_extra": 2, "position": "alibi", "kernel": "reference"},
    {"pattern": "window", "pattern_size": 2, "position": "shaw", "num_layers": 2, **FULL_EVERY_2},
])  # fmt: skip
def test_whatever_beams_do_they_have_read_their_texts(rng, changes):
    """Copies of prompts, copied again, that change places, read one token or several, and forget some."""
    model, params = make(rng, **{"num_layers": 1} | changes)
    tokens, lengths = prompts(rng, [5, 2])
    reads, forgets = rng.integers(1, 4, 5).tolist(), [0, *rng.integers(0, 2, 4).tolist()]
    texts = [tokens[i, : lengths[i]].tolist() for i in (0, 1) for _ in range(6)]
    inputs, expected_texts = [], []
    for n, lost in zip(reads, forgets, strict=True):
        rows = np.concatenate([rng.integers(0, 6, 6), rng.integers(6, 12, 6)])
        new = rng.integers(0, VOCAB, (12, n)).astype(np.int32)
        texts = [texts[row][: len(texts[row]) - lost] + new[i].tolist() for i, row in enumerate(rows)]
        inputs.append((rows, new, lost))
        expected_texts.append(texts)
    longest = max(map(len, texts)) + len(forgets)

    @jax.jit
    def run(stepper):
        _, cache = stepper.prefill(tokens, lengths, 20, rewound=2)
        cache, found = stepper.repeat(stepper.repeat(cache, 2), 3), []
        for rows, new, lost in inputs:
            logits, cache = stepper.extend(new, stepper.rewind(stepper.reorder(cache, rows), lost))
            found.append(logits[:, -1])
        return found

    full = jax.jit(lambda padded: model.apply({"params": params}, padded)[..., :VOCAB])
    for got, texts in zip(run(DecoderStepper.of(model, params)), expected_texts, strict=True):
        padded = np.stack([np.pad(text, (0, longest - len(text))) for text in texts])
        expected = np.asarray(full(padded))[np.arange(12), [len(text) - 1 for text in texts]]
        np.testing.assert_allclose(got, expected, atol=2e-4)


def test_a_cache_that_grew_goes_on_as_before(rng):
    model, params = make(rng)
    tokens, lengths = prompts(rng, [3, 7])
    new, all_keys = np.array([4, 8], np.int32), (None,) * CONFIG.num_layers

    @jax.jit
    def both(stepper):
        _, cache = stepper.prefill(tokens, lengths, 1)
        (once, filled), (once_wide, wide) = (
            stepper.step(new, cache),
            stepper.step(new, cache.grow(12, all_keys)),
        )
        return (once, stepper.step(new, filled.grow(9, all_keys))[0]), (once_wide, stepper.step(new, wide)[0])

    for a, b in zip(*both(DecoderStepper.of(model, params)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("size,dilation", [(1, 1), (4, 1), (3, 2), (12, 1)])
def test_a_windowed_layer_keeps_its_window(rng, size, dilation):
    """However long the text; of a full layer beside it all is kept."""
    window = {"pattern": "window", "pattern_size": size, "pattern_extra": dilation}
    model, params = make(rng, **window, **FULL_EVERY_2)
    stepper, (tokens, lengths) = DecoderStepper.of(model, params), prompts(rng, [3, 7])
    for room, rewound in ((1, 0), (1_000, 0), (1_000, 5)):
        _, cache = jax.eval_shape(
            lambda room=room, rewound=rewound: stepper.prefill(tokens, lengths, room, rewound)
        )
        reach = (size - 1) * dilation + 1
        assert [layer.slots for layer in cache.layers] == [min(7 + room, reach + rewound), 7 + room]


@pytest.mark.thorough
def test_more_at_once_than_a_ring_holds_is_refused(rng):
    stepper = DecoderStepper.of(*make(rng, pattern="window", pattern_size=3))
    tokens, lengths = prompts(rng, [3, 7])
    _, cache = stepper.prefill(tokens, lengths, 9, rewound=2)
    stepper.extend(tokens[:, :3], cache)
    with pytest.raises(UserError, match=r"^4 tokens at once; a ring of 5 slots takes 3 of this pattern"):
        stepper.extend(tokens[:, :4], cache)


def test_nothing_in_the_padding_is_ever_read(rng):
    """Neither the tokens that pad a prompt nor what an unfilled slot holds changes any logit."""
    model, params = make(rng)
    tokens, lengths = prompts(rng, [3, 7])
    other = np.where(np.arange(7) < lengths[:, None], tokens, (tokens + 1) % VOCAB)
    unread = (np.arange(10) < (7 - lengths)[:, None]) | (np.arange(10) > 7)

    @jax.jit
    def both(stepper, tokens, spoilt):
        logits, cache = stepper.prefill(tokens, lengths, 3)
        layers = jax.tree.map(lambda x: jnp.where(unread[:, None, :, None], spoilt, x), cache.layers)
        spoilt_cache = dataclasses.replace(cache, layers=layers)
        return logits, stepper.step(np.array([4, 8], np.int32), spoilt_cache)[0]

    stepper = DecoderStepper.of(model, params)
    for a, b in zip(both(stepper, tokens, 0.0), both(stepper, other, 1e4), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.parametrize("axes,rows", [((4, 1, 2), 4), ((1, 2, 4), 1), ((8, 1, 1), 3)])
def test_parameters_spread_over_a_mesh_generate_the_same(rng, axes, rows):
    model, params = make(rng)
    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    mesh = parallel.make_mesh(parallel.MeshConfig(*axes), jax.devices()[: math.prod(axes)])
    rules = parallel.RULES["default"]
    shardings = parallel.state_shardings(
        State(jnp.int32(0), boxed, (), None, jnp.int32(0)), mesh, rules
    ).params
    tokens, lengths = prompts(rng, [3, 7, 1, 5][:rows])
    inputs = tokens, lengths, jax.random.split(jax.random.key(0), rows)
    expected, _ = generate(DecoderStepper.of(model, params), *inputs, max_new_tokens=6, temperature=None)
    with parallel.placed(mesh, rules):
        stepper = DecoderStepper.of(model, jax.device_put(params, shardings))
        got, _ = generate(stepper, *inputs, max_new_tokens=6, temperature=None)
    np.testing.assert_array_equal(got, expected)
