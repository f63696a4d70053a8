import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from experiments.masked_lm import MaskedLanguageModeling
from tests.data.encoders.test_masked_text import data
from tests.layers.numpy_attention import linear
from tests.models.numpy_decoder import exact, gelu, gelu_exact, norm
from tests.models.test_classifier import row_of
from tests.parameters import random_params
from transformer.models.encoder import HeadConfig
from transformer.models.masked_lm import MaskedLanguageModel
from transformer.training import parallel
from transformer.training.losses.token_losses import LossConfig
from transformer.training.state import State
from transformer.training.step import make_train_step

VOCAB = 29
CONFIG = HeadConfig(
    d_model=16, num_layers=2, num_heads=2, d_ff=32, position="learned", max_length=64, use_bias=True
)


def make(rng, next_sentence=True, **keys):
    model = MaskedLanguageModel(dataclasses.replace(CONFIG, **keys), VOCAB, next_sentence)
    one = jnp.zeros((1, 1), jnp.int32)
    return model, random_params(rng, model, one, one)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("act", [gelu, gelu_exact])
def test_the_logits_against_float64(rng, act):
    """E Norm(act(x W + b)) + c, of the states at the places."""
    model, params = make(rng, head_activation=act.__name__)
    x, places = rng.normal(size=(2, 7, CONFIG.d_model)), np.array([[1, 5], [0, 6]])
    bound, p = model.bind({"params": params}), exact(params)
    found = bound.unembed(bound.masked_logits(jnp.asarray(x, jnp.float32), jnp.asarray(places)))
    chosen = np.take_along_axis(x, places[..., None], axis=1)
    states = norm(p, CONFIG, "transform_norm", act(linear(p["transform"], chosen)))
    expected = states @ p["encoder"]["embedding"]["table"].T + p["output_bias"]
    np.testing.assert_allclose(found[..., :VOCAB], expected[..., :VOCAB], atol=2e-5, rtol=2e-5)


@pytest.mark.thorough
def test_only_the_places_asked_for_have_logits_and_packed_equals_alone(rng):
    model, params = make(rng)
    texts = [rng.integers(0, VOCAB, n) for n in (6, 9)]
    tokens, segments, positions = row_of(texts, 20)
    places = jnp.asarray([[2, 7, 14]])
    apply = jax.jit(model.apply, static_argnums=3)
    logits, follows = apply(
        {"params": params}, tokens, places, 2, segments_bt=segments, positions_bt=positions
    )
    assert logits.shape == (1, 3, 128) and follows.shape == (1, 2, 2)
    assert (np.asarray(logits)[..., VOCAB:] < -1e8).all()
    for place, (text, within) in zip(range(3), ((0, 2), (1, 1), (1, 8)), strict=True):
        alone, next_alone = apply(
            {"params": params}, jnp.asarray(texts[text])[None], jnp.asarray([[within]]), 1
        )
        np.testing.assert_allclose(logits[0, place], alone[0, 0], atol=1e-5)
        np.testing.assert_allclose(follows[0, text], next_alone[0, 0], atol=1e-5)


def test_the_output_is_the_embedding_s_own_table(rng):
    model, params = make(rng)
    x = jnp.asarray(rng.normal(size=(1, 2, 16)), jnp.float32)
    expected = np.asarray(x, float) @ np.asarray(params["encoder"]["embedding"]["table"], float).T
    found = model.apply({"params": params}, x, method="unembed")
    np.testing.assert_allclose(
        found[..., :VOCAB], (expected + np.asarray(params["output_bias"]))[..., :VOCAB], atol=1e-4
    )


@pytest.mark.thorough
def test_over_context_a_device_computes_logits_of_its_share_of_the_places(rng):
    """With the same gradients, also of places that the axis does not divide: 19 of a row, 5 for a device."""
    tokens, places = rng.integers(0, VOCAB, (8, 128)), rng.integers(0, 128, (8, 19))
    model, params = make(rng, next_sentence=False, num_layers=1, position="rope", vocab_multiple=48)

    def loss(params, tokens, places):
        logits_bmv, _ = model.apply({"params": params}, tokens, places)
        return -jnp.mean(jax.nn.log_softmax(logits_bmv)[..., 1])

    expected = jax.grad(loss)(params, tokens, places)
    grid = parallel.make_mesh(parallel.MeshConfig(data=2, context=4))
    with parallel.placed(grid, parallel.DEFAULT):
        tokens = parallel.put_batch({"tokens": tokens}, parallel.batch_sharding(grid))["tokens"]
        program = jax.jit(jax.grad(loss)).lower(params, tokens, places).compile()
        found = program(params, tokens, places)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, expected)
    shapes = {
        tuple(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", program.as_text())
    }
    assert (4, 5, 48) in shapes and not shapes & {(4, 19, 48), (8, 19, 48)}


def test_a_masked_place_sees_both_sides(rng):
    model, params = make(rng, next_sentence=False)
    tokens = jnp.asarray(rng.integers(0, VOCAB, (1, 9)))
    apply = jax.jit(lambda tokens: model.apply({"params": params}, tokens, jnp.asarray([[4]]))[0])
    same = apply(tokens)
    for place in range(9):
        other = apply(tokens.at[0, place].set((tokens[0, place] + 1) % VOCAB))
        assert np.abs(np.asarray(other - same)[..., :VOCAB]).max() > 1e-5


@pytest.mark.thorough
def test_two_losses_of_ragged_microbatches_add_up_exactly(rng, tmp_path):
    """Each with its own denominator over the whole batch, whatever the parts hold."""
    made = data(tmp_path, sequence_length=96)

    class Objective(MaskedLanguageModeling):
        def __init__(self):
            self.data, self.model = (
                made,
                MaskedLanguageModel(
                    dataclasses.replace(CONFIG, max_length=96), made.special_tokens.vocab_size
                ),
            )
            self.config = type("C", (), {"data": made.config, "loss": LossConfig()})

    objective = Objective()
    batch = dict(made.loader("train", 8).batch_at(0))
    batch["guessed"] = batch["guessed"] * (rng.random((8, 1)) < 0.6)
    batch["weights"] = batch["weights"] * (rng.random((8, 1)) < 0.6)
    batch["weights"][0], batch["guessed"][1] = 1, 1
    params = nn.meta.unbox(objective.init(jax.random.key(0)))
    optimizer = optax.sgd(1.0)

    def after(microbatches):
        state = State.create(params, optimizer, ema=False)
        step = make_train_step(objective, optimizer, seed=0, microbatches=microbatches)
        state, metrics = jax.jit(step)(state, batch)
        return state.params, {name: float(metrics[name].mean) for name in ("loss", "next_loss")}

    whole, metrics = after(1)
    assert (
        abs(metrics["loss"] - np.log(made.special_tokens.vocab_size)) < 1
        and abs(metrics["next_loss"] - np.log(2)) < 1
    )
    for parts in (2, 4, 8):
        cut, found = after(parts)
        assert found == {name: pytest.approx(value, rel=1e-5) for name, value in metrics.items()}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), cut, whole)
