import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer.errors import UserError
from transformer.models.word_embedding import SkipGram, SkipGramConfig


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_scores_are_products_of_the_two_tables(rng, dtype, tolerance):
    model = SkipGram(SkipGramConfig(d_model=8, dtype=dtype, vocab_multiple=16), vocab_size=11)
    tokens = rng.integers(0, 11, (2, 5)).astype(np.int32)
    noise = rng.integers(0, 11, (2, 3)).astype(np.int32)
    params = nn.meta.unbox(model.init(jax.random.key(1), tokens, noise))["params"]
    assert {name: part["table"].shape for name, part in params.items()} == {
        "embedding": (16, 8),
        "context": (16, 8),
    }
    near, noisy = model.apply({"params": params}, tokens, noise)
    v, u = (np.asarray(params[name]["table"], np.float64) for name in ("embedding", "context"))
    scale = np.abs(v).max() * np.abs(u).max() * 8
    for row in range(2):
        for t in range(5):
            for s in range(5):
                assert float(near[row, t, s]) == pytest.approx(
                    u[tokens[row, s]] @ v[tokens[row, t]], abs=tolerance * scale
                )
            for k in range(3):
                assert float(noisy[row, t, k]) == pytest.approx(
                    u[noise[row, k]] @ v[tokens[row, t]], abs=tolerance * scale
                )
    assert near.dtype == noisy.dtype == jnp.float32


def test_impossible_keys():
    with pytest.raises(UserError, match="d_model: 0; expected at least 1"):
        SkipGramConfig(d_model=0)
