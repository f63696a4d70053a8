"""Text encoders of several families, with random parameters, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.models.test_classifier import row_of
from tests.parameters import random_params
from tests.slopes import assert_slopes
from transformer.config import refuse_idle
from transformer.errors import UserError
from transformer.models.encoder import EncoderConfig, TextEncoder

VOCAB = 23
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 12, "norm": "layer", "embedding_norm": True, "max_length": 16}
BERT = {"num_layers": 2, "norm_placement": "post", "position": "learned", "use_bias": True}
BERT |= {"feed_forward": "gelu_exact", "norm_epsilon": 1e-12}
FAMILIES = {
    "bert": BERT,
    "roberta": BERT | {"position_offset": 2, "num_token_types": 1, "token_type_bias": True},
    "modernbert": {
        "num_layers": 5,
        "num_token_types": 1,
        "feed_forward": "geglu_exact",
        "layers": ("first", "local", "full", "local", "local"),
        "layer_kinds": {
            "first": {"attention_norm": False, "position_base": 160.0},
            "local": {"pattern": "window", "pattern_size": 3},
            "full": {"position_base": 160.0},
        },
    },
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("family", FAMILIES)
def test_against_float64(rng, family):
    """Two texts and padding in a row, the second token of each of another type; and the gradient."""
    config = EncoderConfig(**SIZES | FAMILIES[family])
    refuse_idle(config)
    model = TextEncoder(config, VOCAB)
    tokens, segments, positions = row_of([rng.integers(0, VOCAB, n) for n in (7, 5)], 14)
    types = positions % 2
    params = random_params(rng, model, tokens)
    inside = np.asarray(segments[0]) > 0
    weights = rng.normal(size=(14, 16)) * inside[:, None]

    def states(params):
        inputs = {"segments_bt": segments, "positions_bt": positions, "types_bt": types}
        return model.apply({"params": params}, tokens, **inputs)[0]

    def expected(params):
        row = (np.asarray(each[0]) for each in (tokens, types, segments, positions))
        return numpy_decoder.encoder(params, config, *row)

    found, backward = jax.jit(lambda params: jax.vjp(states, params))(params)
    exact = numpy_decoder.exact(params)
    np.testing.assert_allclose(found[inside], expected(exact)[inside], atol=2e-5, rtol=2e-5)
    (gradient,) = backward(jnp.asarray(weights, jnp.float32))
    assert_slopes(rng, lambda p: np.sum(weights * expected(p)), exact, gradient)


def test_the_first_layer_s_attention_has_no_norm_of_its_own(rng):
    model = TextEncoder(EncoderConfig(**SIZES | FAMILIES["modernbert"]), VOCAB)
    blocks = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))["trunk"]["blocks"]
    assert {kind: len(jax.tree.leaves(tree)[0]) for kind, tree in blocks.items()} == {
        "first": 1, "local": 3, "full": 1,
    }  # fmt: skip
    assert "attention_norm" not in blocks["first"] and "attention_norm" in blocks["full"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"token_type_bias": True}, "token_type_bias: True with num_token_types 2; expected 1"),
        ({"position_offset": 2}, "position_offset: 2 with position 'rope', only with 'learned'"),
        (
            {"norm_placement": "post", "attention_norm": False},
            "attention_norm: False with norm_placement 'post'; expected 'pre' or 'sandwich'",
        ),
    ],
)
def test_keys_that_do_not_go_together(keys, message):
    with pytest.raises(UserError, match="^" + message):
        EncoderConfig(**SIZES | keys)
