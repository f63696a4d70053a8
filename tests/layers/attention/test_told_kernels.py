"""The line that says which kernels attention uses."""

import jax
import jax.numpy as jnp
import pytest

from tests.layers.attention.test_platform_kernels import pretend
from transformer.layers.attention.kernels import CHOICES, Choice, Recorded, choose, described
from transformer.layers.attention.masks import Mask
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

KINDS = {"layers": ("full", "drops"), "layer_kinds": {"full": {}, "drops": {"attention_dropout": 0.1}}}


def told(model, *inputs, **options):
    """The lines for one forward pass."""
    lines = []
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)

    @Recorded(lines.append)
    def apply(params, *inputs):
        return model.apply(params, *inputs, train=True, rngs={"dropout": jax.random.key(0)}, **options)

    jax.eval_shape(apply, params, *inputs)
    return lines


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("scan", [False, True])
def test_each_kind_of_layers_has_its_kernel_and_the_reason(monkeypatch, scan):
    model = Decoder(DecoderConfig(d_model=128, num_heads=2, scan_layers=scan, remat="full", **KINDS), 11)
    tokens = jnp.zeros((2, 128), jnp.int32)
    both = "in blocks/full/attention, unrolled in blocks/drops/attention"
    assert told(model, tokens) == ["attention: unrolled"]
    pretend(monkeypatch, "tpu")
    assert told(model, tokens) == [f"attention: splash {both} (splash: it has no dropout of weights)"]


@pytest.mark.thorough
def test_all_three_attentions_of_an_encoder_decoder():
    model = EncoderDecoder(EncoderDecoderConfig(num_layers=2), 11)
    tokens = jnp.zeros((2, 16), jnp.int32)
    (line,) = told(model, tokens, tokens)
    where = "in encoder/attention and decoder/cross_attention"
    assert line == f"attention: reference {where}, unrolled in decoder/attention"


def test_nothing_is_told_without_attention_and_nothing_kept_without_a_reader():
    lines, x = [], jnp.zeros((1, 4, 2, 8))
    choose("auto", x, x, x, mask=Mask(causal=True))
    assert not CHOICES.get()
    with Recorded(lines.append):
        pass
    with Recorded(lines.append):
        choose("auto", x, x, x, mask=Mask(causal=True), place="here")
    choose("auto", x, x, x, mask=Mask(causal=True))
    assert lines == ["attention: unrolled"] and not CHOICES.get()


def test_only_kernels_for_these_devices_have_a_reason():
    refusals = {"ring": "no windows", "unrolled": "the mask is not causal"}
    assert described([Choice("", "reference", refusals)]) == "attention: reference (ring: no windows)"
