"""Published models, by the numbers of parameters and the shapes that their papers imply."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from configs.papers import vaswani_base, vaswani_big
from transformer.freeze import freeze
from transformer.models.encoder_decoder import EncoderDecoderConfig


def shapes(config: dict, vocab_size: int) -> dict[str, tuple]:
    model = freeze(EncoderDecoderConfig, config).build(vocab_size)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens))["params"]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


BASE, BIG = (vaswani_base, 512, 2048, 8), (vaswani_big, 1024, 4096, 16)


@pytest.mark.parametrize(("paper", "d", "f", "h"), [BASE, BIG])
def test_the_original_transformer(paper, d, f, h):
    config = paper.get_config().to_dict()
    found = shapes(config["model"] | {"vocab_multiple": 1}, 37000)
    attention, feed_forward, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    count = sum(jnp.prod(jnp.array(shape)).item() for shape in found.values())
    assert count == 37000 * d + 6 * (encoder + decoder)
    assert count == {512: 63_045_632, 1024: 214_171_648}[d]  # "65" and "213" million in table 3
    assert [name for name in found if "embedding" in name] == ["embedding/table"]
    for stack, part in (("encoder", ["attention"]), ("decoder", ["attention", "cross_attention"])):
        for name in part:
            for kernel in ("query", "key", "value"):
                assert found[f"{stack}_blocks/{name}/{kernel}/kernel"] == (6, d, h, 64)
            assert found[f"{stack}_blocks/{name}/output/kernel"] == (6, h, 64, d)
        assert found[f"{stack}_blocks/feed_forward/up/kernel"] == (6, d, f)
    assert not any("final_norm" in name or "encoder_norm" in name for name in found)


def test_the_rate_of_the_original_schedule():
    from transformer.training.optimizer import OptimizerConfig, make_optimizer

    config = vaswani_base.get_config().to_dict()["optimizer"]
    _, rate = make_optimizer(freeze(OptimizerConfig, config), 100_000)
    for step in (1, 100, 4000, 4001, 50_000):
        assert rate(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
