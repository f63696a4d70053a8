"""The recurrent encoder-decoder: pairs kept apart, the future unseen, decoding equal to training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.decoding.generation import generate
from transformer.errors import UserError
from transformer.models.recurrent import RecurrentConfig, RecurrentEncoderDecoder

CONFIG = RecurrentConfig(d_model=8, num_layers=2, vocab_multiple=16)
VOCAB = 13
VARIANTS = {
    "gru_additive": {},
    "lstm_dot": {"cell": "lstm", "attention": "dot", "num_encoder_layers": 1},
    "gru_none": {"attention": "none", "share_embeddings": False},
    "lstm_none_one_direction": {"cell": "lstm", "attention": "none", "bidirectional": False},
    "gru_dot_one_direction": {"attention": "dot", "bidirectional": False, "tie_embeddings": False},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


def make(rng, **changes):
    model = dataclasses.replace(CONFIG, **changes).build(VOCAB)
    one = jnp.zeros((1, 1), jnp.int32)
    return model, random_params(rng, model, one, one)


def sequences(rng, lengths):
    return [rng.integers(0, VOCAB, n).astype(np.int32) for n in lengths]


def pack(parts, room):
    """One row of sequences, and the numbers of their segments; in the padding stands token 1."""
    lengths = [len(part) for part in parts]
    padding = room - sum(lengths)
    row = np.concatenate([*parts, np.ones(padding, np.int32)])
    segments = np.repeat([*range(1, len(parts) + 1), 0], [*lengths, padding])
    return row[None], segments[None].astype(np.int32)


@pytest.mark.thorough
@every_variant
def test_packed_and_padded_pairs_equal_separate_ones(rng, changes):
    model, params = make(rng, **changes)
    sources, targets = sequences(rng, [3, 1]), sequences(rng, [2, 4])
    apply = jax.jit(model.apply)

    def run(sources, targets):
        (source, source_segments), (tokens, segments) = pack(sources, 6), pack(targets, 8)
        inputs = {"source_segments_bs": source_segments, "segments_bt": segments}
        logits = apply({"params": params}, source, tokens, **inputs)[0]
        assert np.isfinite(logits).all() and logits.dtype == jnp.float32
        return logits[: sum(map(len, targets))]

    packed = np.split(run(sources, targets), [2])
    for source, target, together in zip(sources, targets, packed, strict=True):
        alone = apply({"params": params}, source[None], target[None])[0]
        np.testing.assert_allclose(together, alone, atol=2e-5)
        np.testing.assert_allclose(run([source], [target]), alone, atol=2e-5)


@pytest.mark.thorough
@every_variant
def test_what_each_output_depends_on(rng, changes, monkeypatch):
    """Through its embeddings an output has a gradient to its own source, all of it, and to the target up to
    itself: exactly zero to later tokens, to other pairs and to padding."""
    model, params = make(rng, **changes)
    sources, targets = sequences(rng, [3, 4]), sequences(rng, [2, 5])
    (source, source_segments), (tokens, segments) = pack(sources, 9), pack(targets, 8)
    at = 4  # the third token of the second target
    offsets = jnp.zeros((1, 9, 8)), jnp.zeros((1, 8, 8))
    plain_placed = RecurrentEncoderDecoder._placed

    def logits(offsets):
        waiting = list(offsets)  # embeddings are placed twice: the source's, then the target's
        placed = lambda self, x: plain_placed(self, x) + waiting.pop(0)  # noqa: E731
        monkeypatch.setattr(RecurrentEncoderDecoder, "_placed", placed)
        inputs = {"source_segments_bs": source_segments, "segments_bt": segments}
        return model.apply({"params": params}, source, tokens, **inputs)[0, at, :VOCAB]

    of_source, of_target = jax.jit(jax.jacrev(logits))(offsets)  # (v, 1, s or t, d)
    reads_source, reads_target = (np.abs(j).max(axis=(0, 1, 3)) > 0 for j in (of_source, of_target))
    np.testing.assert_array_equal(reads_source, source_segments[0] == 2)
    np.testing.assert_array_equal(reads_target, (segments[0] == 2) & (np.arange(8) <= at))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_only_a_bidirectional_encoder_sees_to_the_right(rng, bidirectional):
    model, params = make(rng, bidirectional=bidirectional)
    (source,) = sequences(rng, [5])
    other = source.copy()
    other[3] = (other[3] + 1) % VOCAB
    ones = jnp.ones((1, 5), jnp.int32)
    encode = jax.jit(lambda source: model.apply({"params": params}, source[None], ones, method="encode")[0])
    changed = np.abs(encode(source) - encode(other)).max(axis=1) > 0
    np.testing.assert_array_equal(changed, [bidirectional] * 3 + [True] * 2)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["dot", "additive"])
def test_attention_weights_are_shown_when_asked_for_and_stay_within_the_pair(rng, kind):
    model, params = make(rng, attention=kind)
    (source, source_segments), (tokens, segments) = (
        pack(sequences(rng, lengths), room) for lengths, room in (([3, 4], 9), ([2, 5], 8))
    )
    inputs = {"source_segments_bs": source_segments, "segments_bt": segments}
    apply = jax.jit(
        lambda: model.apply({"params": params}, source, tokens, **inputs, mutable=["intermediates"])
    )
    _, sown = apply()
    (weights_bhts,) = sown["intermediates"]["attention"]["weights"]
    assert weights_bhts.shape == (1, 1, 8, 9)
    allowed = (segments[:, :, None] == source_segments[:, None]) & (segments[:, :, None] > 0)
    np.testing.assert_array_equal(np.asarray(weights_bhts)[:, 0] > 0, allowed)
    np.testing.assert_allclose(weights_bhts.sum(-1)[:, 0], segments > 0, atol=1e-6)


@pytest.mark.thorough
def test_context_and_state_are_combined_and_squashed(rng):
    """tanh(W [context; s]), with large values, where a tanh is far from its argument."""
    model, params = make(rng, attention="dot")
    width = params["combine"]["kernel"].shape[1]
    s_btd, h_bsd = (10 * rng.normal(size=(2, n, width)).astype(np.float32) for n in (3, 5))
    allowed = np.ones((2, 3, 5), bool)
    out = model.apply(
        {"params": params},
        s_btd,
        model.apply({"params": params}, h_bsd, method="remember"),
        allowed,
        method="attend",
    )
    context = model.apply(
        {"params": params}, method=lambda bound: bound.attention(s_btd, bound.remember(h_bsd), allowed)
    )
    joined = np.concatenate([context, s_btd], axis=-1).astype(np.float64)
    np.testing.assert_allclose(out, np.tanh(joined @ np.float64(params["combine"]["kernel"])), atol=1e-5)


@pytest.mark.thorough
@every_variant
def test_steps_equal_the_full_pass_also_with_several_rows_a_source(rng, changes):
    """Ragged sources, two rows of each, that change places on the way."""
    model, params = make(rng, **changes)
    lengths, bos = np.array([3, 5, 1], np.int32), 2
    sources = rng.integers(0, VOCAB, (3, 5)).astype(np.int32)
    first, later = (rng.integers(0, VOCAB, (2, 6)).astype(np.int32) for _ in range(2))
    order = np.array([1, 0, 2, 2, 5, 4])

    @jax.jit
    def stepped(stepper):
        start, cache = stepper.prefill(sources, lengths, 5)
        cache = stepper.repeat(cache, 2)
        outputs = [jnp.repeat(start, 2, axis=0)]
        for tokens in first:
            logits, cache = stepper.step(tokens, cache)
            outputs.append(logits)
        outputs, cache = [each[order] for each in outputs], stepper.reorder(cache, order)
        for tokens in later:
            logits, cache = stepper.step(tokens, cache)
            outputs.append(logits)
        return jnp.stack(outputs, axis=1), cache

    got, cache = stepped(model.stepper(params, bos))
    assert got.shape == (6, 5, VOCAB) and got.dtype == jnp.float32
    assert {leaf.shape[0] for leaf in jax.tree.leaves(cache.memory)} == {3}  # one row a source, still
    tokens = np.stack([np.full(6, bos), *first[:, order], *later], axis=1)
    rows = np.repeat(np.arange(3), 2)
    inputs = {
        "source_segments_bs": (np.arange(5) < lengths[rows, None]).astype(np.int32),
        "segments_bt": np.ones_like(tokens),
    }
    full = jax.jit(model.apply)({"params": params}, sources[rows], tokens, **inputs)
    np.testing.assert_allclose(got, full[..., :VOCAB], atol=2e-5)


@pytest.mark.thorough
def test_padding_of_a_source_is_never_read_in_decoding(rng):
    model, params = make(rng)
    lengths = np.array([3, 5], np.int32)
    source = rng.integers(0, VOCAB, (2, 7)).astype(np.int32)
    other = np.where(np.arange(7) < lengths[:, None], source, (source + 1) % VOCAB)

    @jax.jit
    def both(stepper, source):
        start, cache = stepper.prefill(source, lengths, 2)
        return start, stepper.step(np.array([4, 8], np.int32), cache)[0]

    stepper = model.stepper(params, 0)
    for a, b in zip(both(stepper, source), both(stepper, other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_greedy_generation_is_the_likeliest_of_the_full_pass(rng):
    model, params = make(rng)
    source, lengths = rng.integers(0, VOCAB, (2, 4)).astype(np.int32), np.array([4, 4], np.int32)
    rngs = jax.random.split(jax.random.key(0), 2)
    new, _ = generate(model.stepper(params, 0), source, lengths, rngs, max_new_tokens=5, temperature=None)
    tokens = np.concatenate([np.zeros((2, 1), np.int32), np.asarray(new)[:, :-1]], axis=1)
    full = np.asarray(jax.jit(model.apply)({"params": params}, source, tokens))[..., :VOCAB]
    chosen = np.take_along_axis(full, np.asarray(new)[..., None], axis=2)[..., 0]
    assert (chosen >= full.max(-1) - 1e-4).all()


@pytest.mark.thorough
@every_variant
def test_every_parameter_has_a_finite_gradient_in_packed_rows(rng, changes):
    model, params = make(rng, **changes, dropout=0.3)
    (source, source_segments), (tokens, segments) = (
        pack(sequences(rng, lengths), room) for lengths, room in (([3, 4], 9), ([2, 5], 8))
    )

    @jax.jit
    @jax.grad
    def gradient(params):
        logits = model.apply(
            {"params": params},
            source,
            tokens,
            source_segments_bs=source_segments,
            segments_bt=segments,
            train=True,
            rngs={"dropout": jax.random.key(1)},
        )
        return -jnp.mean(jax.nn.log_softmax(logits)[..., 1])

    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(params)):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path


@pytest.mark.thorough
def test_dropout_acts_in_training_only(rng):
    model, params = make(rng, dropout=0.5)
    source, tokens = (rng.integers(0, VOCAB, (2, n)).astype(np.int32) for n in (4, 3))

    @jax.jit
    def run(key):
        variables, rngs = {"params": params}, {"dropout": key}
        training = model.apply(variables, source, tokens, train=True, rngs=rngs)
        return (
            training,
            model.apply(variables, source, tokens),
            model.apply(variables, source, tokens, rngs=rngs),
        )

    (a, still, same), (b, _, _) = run(jax.random.key(0)), run(jax.random.key(1))
    assert np.abs(a - b).max() > 1e-3
    np.testing.assert_array_equal(still, same)


@pytest.mark.parametrize(("changes", "words"), [
    ({"d_model": 7}, "d_model: 7"),
    ({"num_layers": 0}, "num_layers: 0"),
    ({"num_encoder_layers": -1}, "num_encoder_layers: -1"),
    ({"dropout": 1.0}, "dropout: 1.0"),
    ({"vocab_multiple": 0}, "vocab_multiple: 0"),
])  # fmt: skip
def test_an_impossible_shape_is_named(changes, words):
    with pytest.raises(UserError, match=words):
        dataclasses.replace(CONFIG, **changes)
    dataclasses.replace(CONFIG, d_model=7, bidirectional=False)
