"""Published models, by the numbers of parameters and the shapes that their papers imply."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from configs.papers import (
    bert_base,
    bert_tiny,
    gpt2,
    llama_1b,
    llama_8b,
    llama_70b,
    t5,
    vaswani_base,
    vaswani_big,
)
from transformer.config import from_values
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import HeadConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.masked_lm import MaskedLanguageModel


def shapes(model: nn.Module) -> dict[str, tuple]:
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens))["params"]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


BASE, BIG = (vaswani_base, 512, 2048, 8), (vaswani_big, 1024, 4096, 16)


@pytest.mark.parametrize(("paper", "d", "f", "h"), [BASE, BIG])
def test_the_original_transformer(paper, d, f, h):
    config = paper.get_config().to_dict()
    model = from_values(EncoderDecoderConfig, config["model"] | {"vocab_multiple": 1}).build(37000)
    found = shapes(model)
    attention, feed_forward, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    count = sum(map(math.prod, found.values()))
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("paper", "encoder", "whole"), [(bert_base, 109_482_240, 110_106_428), (bert_tiny, 4_385_920, 4_433_468)]
)
def test_bert(paper, encoder, whole):
    """The counts of the released encoders with their poolers, and with both heads."""
    config = from_values(HeadConfig, paper.get_config().to_dict()["model"] | {"vocab_multiple": 1})
    found = shapes(MaskedLanguageModel(config, 30522))
    d = config.d_model
    assert sum(map(math.prod, found.values())) == whole == encoder + d * d + 3 * d + 30522 + 2 * d + 2
    n, h = config.num_layers, config.num_heads
    assert found["encoder/trunk/blocks/attention/query/kernel"] == (n, d, h, 64)
    assert found["encoder/trunk/blocks/feed_forward/up/kernel"] == (n, d, 4 * d)
    assert [name for name in found if found[name][:1] == (30522,)] == [
        "encoder/embedding/table",
        "output_bias",
    ]


def test_the_rate_of_the_original_schedule():
    from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer

    config = vaswani_base.get_config().to_dict()["optimizer"]
    _, rate = make_optimizer(from_values(OptimizerConfig, config), 100_000)
    for step in (1, 100, 4000, 4001, 50_000):
        assert rate(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def decoder_shapes(config, vocab_size: int) -> dict[str, tuple]:
    model = from_values(DecoderConfig, config.to_dict()["model"] | {"vocab_multiple": 1}).build(vocab_size)
    params = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    leaves = jax.tree_util.tree_leaves_with_path(params["params"])
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


@pytest.mark.parametrize(
    ("config", "vocab_size", "count"),
    [
        (gpt2.get_config(), 50_257, 124_439_808),
        (gpt2.get_config("medium"), 50_257, 354_823_168),
        (gpt2.get_config("large"), 50_257, 774_030_080),
        (gpt2.get_config("xl"), 50_257, 1_557_611_200),
        (llama_1b.get_config(), 128_256, 1_235_814_400),
        (llama_8b.get_config(), 128_256, 8_030_261_248),
        (llama_70b.get_config(), 128_256, 70_553_706_496),
    ],
)
def test_released_decoders_have_their_numbers_of_parameters(config, vocab_size, count):
    found = decoder_shapes(config, vocab_size)
    assert sum(map(math.prod, found.values())) == count
    n, d, h = (config.model[key] for key in ("num_layers", "d_model", "num_heads"))
    assert found["blocks/attention/query/kernel"] == (n, d, h, d // h)


@pytest.mark.parametrize(
    ("size", "count"),
    [("small", 60_506_624), ("base", 222_903_552), ("large", 737_668_096), ("3b", 2_851_598_336)],
)
def test_t5_has_the_released_number_of_parameters(size, count):
    config = t5.get_config(size)
    model = from_values(EncoderDecoderConfig, config.to_dict()["model"] | {"vocab_multiple": 1}).build(32_128)
    assert sum(map(math.prod, shapes(model).values())) == count
