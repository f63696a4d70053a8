import jax
import jax.numpy as jnp
import numpy as np

from tests.models.test_classifier import row_of
from tests.parameters import random_params
from transformer.models.encoder import EncoderConfig
from transformer.models.span import SpanClassifier, place_log_probs

VOCAB = 29
CONFIG = EncoderConfig(
    d_model=16, num_layers=2, num_heads=2, d_ff=32, position="learned", max_length=64, use_bias=True
)


def make(rng):
    model = SpanClassifier(CONFIG, VOCAB)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


def test_texts_that_share_a_row_are_read_as_alone_and_padding_is_nothing(rng):
    model, params = make(rng)
    apply = jax.jit(
        lambda tokens, segments, positions, types: model.apply(
            {"params": params}, tokens, segments_bt=segments, positions_bt=positions, types_bt=types
        )
    )
    texts = [rng.integers(0, VOCAB, n) for n in (6, 9)]
    tokens, segments, positions = row_of(texts, 20)
    types = jnp.asarray(rng.integers(0, 2, (1, 20)))
    together = apply(tokens, segments, positions, types)
    assert together.shape == (1, 20, 2) and together.dtype == jnp.float32
    for start, text in ((0, texts[0]), (6, texts[1])):
        here = np.s_[:, start : start + len(text)]
        alone = apply(*row_of([text], len(text)), types[here])
        np.testing.assert_allclose(together[here], alone, atol=1e-5)
    other = jnp.where(segments == 0, rng.integers(0, VOCAB, tokens.shape), tokens)
    np.testing.assert_array_equal(apply(other, segments, positions, types)[:, :15], together[:, :15])


def test_the_parameters_have_the_names_that_a_pretrained_encoder_has(rng):
    _, params = make(rng)
    assert set(params) == {"encoder", "head"}
    assert params["head"]["classes"]["kernel"].shape == (16, 2)


def test_log_probabilities_equal_a_loop_in_float64(rng):
    b, t, k = 3, 12, 4
    logits = (5 * rng.normal(size=(b, t, 2))).astype(np.float32)
    segments = np.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12, [0] * 12])
    choices = (rng.random((b, t)) < 0.6) & (segments > 0)
    choices[:, [0, 5]] |= segments[:, [0, 5]] > 0
    found = np.asarray(jax.jit(place_log_probs, static_argnums=3)(logits, segments, choices, k))
    assert found.shape == (b, k, t, 2) and np.isfinite(found).all()
    for i in range(b):
        for n in range(k):
            (possible,) = np.nonzero(choices[i] & (segments[i] == n + 1))
            if len(possible):
                x = logits[i, possible].astype(np.float64)
                expected = x - np.log(np.exp(x).sum(axis=0))
                np.testing.assert_allclose(found[i, n, possible], expected, atol=1e-5)
                others = np.setdiff1d(np.arange(t), possible)
                assert (found[i, n, others] < -1e8).all()


def test_what_is_no_choice_gets_no_gradient(rng):
    logits = jnp.asarray(rng.normal(size=(1, 8, 2)), jnp.float32)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0]])
    choices = jnp.asarray([[1, 0, 1, 1, 1, 0, 0, 0]], bool)
    gradient = jax.grad(lambda x: place_log_probs(x, segments, choices, 3)[0, :2, [0, 3]].sum())(logits)
    np.testing.assert_array_equal(np.asarray(gradient[0, [1, 5, 6, 7]]), 0)
    assert (np.abs(np.asarray(gradient[0, [0, 2, 3, 4]])) > 0).any()
