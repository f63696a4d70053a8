import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import stats

from configs.papers import bert_base
from transformer.config import from_values
from transformer.models.encoder import HeadConfig
from transformer.models.masked_lm import MaskedLanguageModel
from transformer.training.optim.initial_values import redraw


def named(params) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(nn.meta.unbox(params))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.thorough
def test_every_matrix_is_drawn_from_the_truncated_normal_of_bert():
    """Of the paper's config, narrowed: what is random there is 0.02 times a normal within two deviations,
    biases are 0 and norms 1, and no two arrays or layers are the same draws."""
    config = bert_base.get_config().to_dict()
    assert config["initialize_std"] == 0.02
    small = {"d_model": 64, "num_layers": 2, "num_heads": 2, "d_ff": 128, "max_length": 64}
    model = MaskedLanguageModel(from_values(HeadConfig, config["model"] | small), 200)
    tokens = jnp.zeros((1, 1), jnp.int32)
    boxed = model.init(jax.random.key(0), tokens, tokens)["params"]
    drawn = redraw(boxed, jax.random.key(1), config["initialize_std"])
    assert jax.tree.structure(drawn) == jax.tree.structure(boxed)  # with the names of its axes
    found = named(drawn)
    random = {name: x for name, x in found.items() if name.endswith(("kernel", "table"))}
    assert len(random) == 12
    for name, x in found.items():
        if name not in random:
            assert (x == (1 if name.endswith("scale") else 0)).all(), name
    everything = np.concatenate([x.ravel() for x in random.values()])
    assert np.abs(everything).max() <= 0.04
    assert stats.kstest(everything / 0.02, stats.truncnorm(-2, 2).cdf).pvalue > 1e-4
    starts = [part.ravel()[:4] for name, x in random.items() for part in (x if "blocks" in name else [x])]
    assert len({tuple(start) for start in starts}) == len(starts) == 18
    again = named(redraw(boxed, jax.random.key(1), 0.02))
    other = named(redraw(boxed, jax.random.key(2), 0.02))
    for name, x in random.items():
        np.testing.assert_array_equal(x, again[name])
        assert (x != other[name]).all(), name


def test_corrections_of_low_rank_still_begin_as_nothing():
    params = {"query": {"kernel": jnp.zeros((4, 4)), "lora_up": {"kernel": jnp.zeros((2, 4))}}}
    drawn = redraw(params, jax.random.key(0), 0.02)
    assert not drawn["query"]["lora_up"]["kernel"].any() and drawn["query"]["kernel"].all()
