import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.decoding.generation import generate
from transformer.decoding.speculative import generate_speculative
from transformer.errors import UserError
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.recurrent import RecurrentConfig

VOCAB = 11
SMALL = EncoderDecoderConfig(
    d_model=16, num_layers=2, num_heads=2, d_ff=24, max_length=16, vocab_multiple=8, use_bias=True
)
VARIANTS = [
    SMALL,
    dataclasses.replace(SMALL, norm_placement="post", position="sinusoidal", feed_forward="relu"),
    dataclasses.replace(SMALL, num_encoder_layers=1, share_embeddings=False, tie_embeddings=False),
    dataclasses.replace(SMALL, num_kv_heads=1, position="learned", norm="rms", scan_layers=True),
    dataclasses.replace(SMALL, pattern="window", pattern_size=2),
    dataclasses.replace(SMALL, embedding_norm=True, position="learned", position_offset=2),
]


def make(config: EncoderDecoderConfig | RecurrentConfig, rng: np.random.Generator):
    model = config.build(VOCAB)
    source, tokens = jnp.zeros((1, 3), jnp.int32), jnp.zeros((1, 2), jnp.int32)
    return model, random_params(rng, model, source, tokens)


def tokens_of(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(1, VOCAB, shape).astype(np.int32)


@pytest.mark.thorough
@pytest.mark.parametrize("config", VARIANTS)
def test_packed_pairs_equal_pairs_alone(rng, config):
    model, params = make(config, rng)
    lengths = [(3, 5), (4, 2), (3, 5)]
    pairs = [(tokens_of(rng, 1, s), tokens_of(rng, 1, t)) for s, t in lengths]
    apply = jax.jit(lambda *a, **k: model.apply({"params": params}, *a, **k))
    alone = [np.asarray(apply(*pair))[0, :, :VOCAB] for pair in pairs]

    def packed(rows, width):
        numbers = np.concatenate([np.full(row.shape[1], i + 1) for i, row in enumerate(rows)])
        places = np.concatenate([np.arange(row.shape[1]) for row in rows])
        fill = width - len(numbers)
        values = np.concatenate(rows, axis=1)[0]
        junk = tokens_of(rng, fill)
        row = np.concatenate([values, junk]), np.pad(numbers, (0, fill)), np.pad(places, (0, fill))
        return [part[None].astype(np.int32) for part in row]

    source, source_segments, source_positions = packed([s for s, _ in pairs], 13)
    tokens, segments, positions = packed([t for _, t in pairs], 14)
    together = apply(
        source,
        tokens,
        source_segments_bs=source_segments,
        source_positions_bs=source_positions,
        segments_bt=segments,
        positions_bt=positions,
    )
    assert np.isfinite(together).all()
    np.testing.assert_allclose(together[0, :12, :VOCAB], np.concatenate(alone), atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("config", VARIANTS)
def test_incremental_equals_full_with_ragged_sources(rng, config):
    model, params = make(config, rng)
    lengths = np.array([4, 1, 6], np.int32)
    source, targets = tokens_of(rng, 3, 6), tokens_of(rng, 3, 5)
    bos = 0

    @jax.jit
    def both(params):
        stepper = model.stepper(params, bos)
        first, cache = stepper.prefill(source, lengths, 6)
        _, others = jax.lax.scan(lambda cache, new_b: stepper.step(new_b, cache)[::-1], cache, targets.T)
        full = []
        inputs = jnp.concatenate([jnp.full((3, 1), bos), targets], axis=1)
        for row, length in enumerate(lengths):
            one = slice(row, row + 1)
            full.append(model.apply({"params": params}, source[one, :length], inputs[one])[0])
        return jnp.stack([first, *others], axis=1), jnp.stack(full)[..., :VOCAB]

    stepped, full = both(params)
    np.testing.assert_allclose(stepped, full, atol=2e-5)


@pytest.mark.thorough
def test_rows_that_share_a_source_are_rows_of_their_own(rng):
    model, params = make(SMALL, rng)
    source, lengths = tokens_of(rng, 2, 5), np.array([5, 3], np.int32)
    first, second = tokens_of(rng, 6), tokens_of(rng, 6)
    rows = np.array([2, 0, 0, 5, 5, 4])

    @jax.jit
    def both(params):
        stepper = model.stepper(params, 0)
        _, cache = stepper.prefill(source, lengths, 4)
        shared = stepper.repeat(cache, 3)
        _, shared = stepper.step(first, shared)
        _, alone = stepper.prefill(np.repeat(source, 3, axis=0), np.repeat(lengths, 3), 4)
        _, alone = stepper.step(first[rows], alone)
        got, _ = stepper.step(second, stepper.reorder(shared, rows))
        return got, stepper.step(second, alone)[0]

    np.testing.assert_allclose(*both(params), atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("config", [SMALL, VARIANTS[3]])
def test_targets_that_change_places_are_read_as_if_alone(rng, config):
    model, params = make(config, rng)
    source, lengths = tokens_of(rng, 2, 5), np.array([5, 3], np.int32)
    new = tokens_of(rng, 4, 6)
    rows = np.concatenate([rng.integers(0, 3, (4, 3)), rng.integers(3, 6, (4, 3))], axis=1)
    texts = np.zeros((6, 1), np.int32)
    for i in range(4):
        texts = np.concatenate([texts[rows[i]], new[i][:, None]], axis=1)

    @jax.jit
    def both(params):
        stepper = model.stepper(params, 0)
        _, cache = stepper.prefill(source, lengths, 6)
        cache = stepper.repeat(cache, 3)
        for i in range(4):
            logits, cache = stepper.step(new[i], stepper.reorder(cache, rows[i]))
        valid = (np.arange(5) < lengths[:, None]).astype(np.int32)
        inputs = np.repeat(source, 3, axis=0), texts
        segments = {"source_segments_bs": np.repeat(valid, 3, axis=0), "segments_bt": np.ones_like(texts)}
        return logits, model.apply({"params": params}, *inputs, **segments)[:, -1, :VOCAB]

    np.testing.assert_allclose(*both(params), atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("config", [SMALL, VARIANTS[-1]])
def test_speculation_on_targets_changes_nothing(rng, config):
    model, params = make(config, rng)
    source, lengths = tokens_of(rng, 3, 5), np.array([5, 2, 4], np.int32)
    inputs = source, lengths, jax.random.split(jax.random.key(0), 3)
    near = jax.tree.map(lambda p: p + 0.1 * rng.normal(size=p.shape).astype(p.dtype), params)
    target, draft = model.stepper(params, 0), model.stepper(near, 0)
    expected, _ = generate(target, *inputs, max_new_tokens=9, temperature=None)
    got, _, _ = generate_speculative(
        target, draft, *inputs, max_new_tokens=9, draft_tokens=3, temperature=None
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.thorough
def test_the_future_of_the_target_is_not_seen_and_all_of_the_source_is(rng):
    model, params = make(SMALL, rng)
    source, tokens = tokens_of(rng, 1, 4), tokens_of(rng, 1, 5)

    @jax.jit
    def gradients(params):
        def seen(x_bsd, x_btd):
            def run(model):
                encoder, decoder = SMALL.encoder_stack, SMALL.decoder_stack
                memory, _ = encoder.run(model, "encoder", params["encoder_blocks"], x_bsd, **inputs(4, False))
                blocks = params["decoder_blocks"]
                x, _ = decoder.run(model, "decoder", blocks, x_btd, memory=memory, **inputs(5, True))
                return jnp.sum(x[0, 2] ** 2)

            return model.apply({"params": params}, method=run)

        def inputs(length, causal):
            from transformer.layers.attention.masks import Mask

            return {"mask": Mask(causal=causal), "positions_bt": jnp.arange(length)[None], "train": False}

        table = params["embedding"]["table"]
        return jax.grad(seen, argnums=(0, 1))(table[source], table[tokens])

    of_source, of_target = (np.abs(g).sum(-1)[0] for g in gradients(params))
    assert (of_source > 0).all() and (of_target[:3] > 0).all() and (of_target[3:] == 0).all()


@pytest.mark.thorough
def test_without_positions_the_order_of_the_source_does_not_matter(rng):
    model, params = make(dataclasses.replace(SMALL, position="none"), rng)
    source, tokens = tokens_of(rng, 2, 6), tokens_of(rng, 2, 4)
    apply = jax.jit(lambda source: model.apply({"params": params}, source, tokens))
    np.testing.assert_allclose(apply(source), apply(source[:, rng.permutation(6)]), atol=2e-5)
    model, params = make(SMALL, rng)
    apply = jax.jit(lambda source: model.apply({"params": params}, source, tokens))
    assert np.abs(apply(source) - apply(source[:, ::-1])).max() > 1e-3


def test_tied_embeddings_are_one_array(rng):
    _, params = make(SMALL, rng)
    assert params.keys() == {"embedding", "encoder_blocks", "decoder_blocks", "encoder_norm", "final_norm"}
    _, params = make(VARIANTS[2], rng)
    assert {"source_embedding", "unembedding"} <= params.keys()
    assert params["encoder_blocks"]["attention"]["query"]["kernel"].shape[0] == 1


@pytest.mark.thorough
def test_attention_weights_are_shown_when_asked_for(rng):
    model, params = make(SMALL, rng)
    source, tokens = tokens_of(rng, 2, 4), tokens_of(rng, 2, 3)
    _, sown = jax.jit(lambda: model.apply({"params": params}, source, tokens, mutable="intermediates"))()
    weights = jnp.stack(
        [layer["cross_attention"]["weights"][0] for layer in sown["intermediates"]["decoder"][0]]
    )
    assert weights.shape == (2, 2, 2, 3, 4)  # layers, batch, heads, target, source
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(model.attention_map(params, source, tokens), weights[-1, 0], atol=1e-6)


def test_an_impossible_shape_is_refused():
    with pytest.raises(UserError, match="num_encoder_layers: -1"):
        dataclasses.replace(SMALL, num_encoder_layers=-1)


@pytest.mark.thorough
def test_targets_begin_with_the_token_that_they_are_said_to_begin_with(rng):
    model, params = make(SMALL, rng)
    source = tokens_of(rng, 2, 4)
    first, _ = model.stepper(params, bos_id=7).prefill(source, np.array([4, 4], np.int32), 3)
    expected = model.apply({"params": params}, source, np.full((2, 1), 7, np.int32))
    np.testing.assert_allclose(first, expected[:, 0, :VOCAB], atol=1e-5)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("config", [SMALL, RecurrentConfig(d_model=8, num_layers=1)])
def test_segments_of_one_side_alone_are_those_of_a_whole_other_side(rng, config):
    model, params = make(config, rng)
    source, tokens = (rng.integers(1, VOCAB, (2, n)).astype(np.int32) for n in (5, 4))
    padded, packed = np.array([[1, 1, 1, 0, 0]] * 2), np.array([[1, 1, 2, 2]] * 2)
    apply = jax.jit(lambda *a, **k: model.apply({"params": params}, *a, **k))
    of_source = apply(source, tokens, source_segments_bs=padded)
    both = {"source_segments_bs": padded, "segments_bt": np.ones_like(tokens)}
    np.testing.assert_allclose(of_source, apply(source, tokens, **both), rtol=2e-6, atol=1e-6)
    other = np.where(padded, source, source % (VOCAB - 1) + 1)
    np.testing.assert_array_equal(of_source, apply(other, tokens, source_segments_bs=padded))
    of_targets = apply(source, tokens, segments_bt=packed)
    both = {"source_segments_bs": np.ones_like(source), "segments_bt": packed}
    np.testing.assert_allclose(of_targets, apply(source, tokens, **both), rtol=2e-6, atol=1e-6)
