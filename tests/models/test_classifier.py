import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.numpy_attention import linear
from tests.models import numpy_decoder
from tests.parameters import random_params
from transformer.models.classifier import POOLINGS, ClassifierConfig, TextClassifier, pool

VOCAB, CLASSES = 31, 3


def make(rng, **changes):
    keys = {
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 2,
        "d_ff": 32,
        "position": "learned",
        "max_length": 64,
    }
    model = TextClassifier(ClassifierConfig(**keys | {"use_bias": True} | changes), VOCAB, CLASSES)
    one = jnp.ones((1, 1), jnp.int32)
    return model, random_params(rng, model, one, one, 1)


def row_of(texts, width):
    """Texts in one row: tokens, segments and positions, (1, width)."""
    lengths = [len(text) for text in texts]
    left = width - sum(lengths)
    tokens = np.concatenate([*texts, np.zeros(left, int)])
    segments = np.repeat([*range(1, len(texts) + 1), 0], [*lengths, left])
    positions = np.concatenate([np.arange(n) for n in [*lengths, left]])
    return tuple(jnp.asarray(each, jnp.int32)[None] for each in (tokens, segments, positions))


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_texts_that_share_a_row_are_classified_as_alone(rng, pooling, placement):
    model, params = make(rng, pooling=pooling, norm_placement=placement, embedding_norm=placement == "post")
    texts = [rng.integers(0, VOCAB, n) for n in (5, 1, 7)]
    apply = jax.jit(
        lambda tokens, segments, positions, k: model.apply(
            {"params": params}, tokens, segments, k, positions_bt=positions
        ),
        static_argnums=3,
    )
    tokens, segments, positions = row_of(texts, 20)
    together = apply(tokens, segments, positions, 4)[0]
    for k, text in enumerate(texts):
        alone = apply(*row_of([text], len(text)), 1)[0, 0]
        np.testing.assert_allclose(together[k], alone, atol=1e-5)
    # What the padding holds changes nothing, bit by bit.
    other = jnp.where(segments == 0, rng.integers(0, VOCAB, tokens.shape), tokens)
    np.testing.assert_array_equal(apply(other, segments, positions, 4)[0, :3], together[:3])


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("pooling", "keys"),
    [(pooling, {}) for pooling in POOLINGS]
    + [("cls", {"pooler": "none"}), ("mean", {"pooler": "tanh"})]
    + [
        ("cls", {"pooler": "masked_lm", "norm": "layer", "head_activation": "gelu_exact", "head_bias": False})
    ],
)
def test_the_head_against_float64(rng, pooling, keys):
    """A linear map of the pooled states, behind BERT's pooler if it is `[CLS]` that is classified, unless
    `pooler` says otherwise."""
    model, params = make(rng, pooling=pooling, num_layers=1, **keys)
    tokens, segments, positions = row_of([rng.integers(0, VOCAB, n) for n in (5, 3)], 8)
    exact = numpy_decoder.exact(params)
    row = tokens[0], 0 * tokens[0], *(np.asarray(each[0]) for each in (segments, positions))
    x_td = numpy_decoder.encoder(exact["encoder"], model.config, *row)
    of = {"mean": lambda v: v.mean(axis=0), "max": lambda v: v.max(axis=0)}
    of |= {"cls": lambda v: v[0], "last": lambda v: v[-1]}
    pooled = np.stack([of[pooling](x_td[row[2] == k]) for k in (1, 2)])
    if keys.get("pooler", "tanh" if pooling == "cls" else "none") == "tanh":
        pooled = np.tanh(linear(exact["pooler"]["dense"], pooled))
    if "transform" in exact:
        hidden = numpy_decoder.gelu_exact(pooled @ exact["transform"]["kernel"])
        assert "bias" not in exact["transform"]
        pooled = numpy_decoder.norm(exact, model.config, "transform_norm", hidden)
    found = model.apply({"params": params}, tokens, segments, 2, positions_bt=positions)[0]
    np.testing.assert_allclose(found, linear(exact["head"]["classes"], pooled), atol=2e-5)


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_equals_a_loop(rng, kind):
    x = rng.normal(size=(3, 9, 4)).astype(np.float32)
    segments = np.array([[1, 1, 1, 2, 2, 3, 0, 0, 0], [1] * 9, [0] * 9])
    found = np.asarray(pool(kind, jnp.asarray(x), jnp.asarray(segments), 3))
    of = {"mean": lambda v: v.mean(axis=0), "max": lambda v: v.max(axis=0)}
    of |= {"cls": lambda v: v[0], "last": lambda v: v[-1]}
    for b in range(3):
        for k in range(3):
            if (segments[b] == k + 1).any():
                np.testing.assert_allclose(found[b, k], of[kind](x[b][segments[b] == k + 1]), rtol=1e-5)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_gets_no_gradient(rng, pooling):
    x = jnp.asarray(rng.normal(size=(1, 8, 4)), jnp.float32)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0, 0, 0]])
    gradient = np.abs(jax.grad(lambda x: jnp.square(pool(pooling, x, segments, 3)).sum())(x)[0]).sum(axis=-1)
    assert np.isfinite(gradient).all() and (gradient[5:] == 0).all()
    read = [2, 4] if pooling == "last" else [0, 3]
    assert (gradient[read] > 0).all() or pooling == "max"


@pytest.mark.thorough
def test_without_positions_the_order_of_tokens_is_nothing_to_a_mean(rng):
    model, params = make(rng, position="none")
    text = rng.integers(0, VOCAB, 9)
    logits = [
        model.apply({"params": params}, jnp.asarray(each)[None], jnp.ones((1, 9), int), 1)
        for each in (text, rng.permutation(text))
    ]
    np.testing.assert_allclose(*logits, atol=1e-5)


def test_types_tell_the_second_text(rng):
    model, params = make(rng)
    tokens, segments, positions = row_of([rng.integers(0, VOCAB, 8)], 8)
    types = (positions > 3).astype(jnp.int32)
    one, two = (
        model.apply({"params": params}, tokens, segments, 1, positions_bt=positions, types_bt=each)
        for each in (types, 0 * types)
    )
    assert np.abs(one - two).max() > 1e-3
