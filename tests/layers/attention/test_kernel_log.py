"""The lines that report which kernels attention uses."""

import logging

import jax
import jax.numpy as jnp
import pytest

from tests.layers.attention.test_platform_kernels import pretend
from transformer.layers.attention.kernels import choose, logging_kernels
from transformer.layers.attention.kernels.kernel_log import log_kernel
from transformer.layers.attention.masks import Mask
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

KINDS = {"layers": ("full", "drops"), "layer_kinds": {"full": {}, "drops": {"attention_dropout": 0.1}}}


def logged(model, *inputs, train=True):
    """The different lines for the initial parameters and one forward pass."""
    lines = {}

    def apply(params, *inputs):
        return model.apply(params, *inputs, train=train, rngs={"dropout": jax.random.key(0)})

    with logging_kernels(lambda line: lines.setdefault(line)):
        jax.eval_shape(apply, jax.eval_shape(model.init, jax.random.key(0), *inputs), *inputs)
    return [*lines]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("scan", [False, True])
def test_each_kind_of_layers_has_its_kernel_and_the_reason(monkeypatch, scan):
    model = Decoder(DecoderConfig(d_model=128, num_heads=2, scan_layers=scan, remat="full", **KINDS), 11)
    tokens = jnp.zeros((2, 128), jnp.int32)
    full, drops = "blocks/full/attention", "blocks/drops/attention"
    assert logged(model, tokens) == [f"attention: unrolled in {place}" for place in (full, drops)]
    assert not logged(model, tokens, train=False)
    pretend(monkeypatch, "tpu")
    assert logged(model, tokens) == [
        f"attention: splash in {full}",
        f"attention: unrolled in {drops} (splash: it has no dropout of weights)",
    ]


@pytest.mark.thorough
def test_all_three_attentions_of_an_encoder_decoder():
    model = EncoderDecoder(EncoderDecoderConfig(num_layers=2), 11)
    tokens = jnp.zeros((2, 16), jnp.int32)
    assert logged(model, tokens, tokens) == [
        "attention: reference in encoder/attention",
        "attention: unrolled in decoder/attention",
        "attention: reference in decoder/cross_attention",
    ]


def test_only_lines_of_the_context_are_written(caplog):
    lines, x = [], jnp.zeros((1, 4, 2, 8))
    for _ in range(2):
        with logging_kernels(lines.append):
            choose("auto", x, x, x, mask=Mask(causal=True), place="here")
        choose("auto", x, x, x, mask=Mask(causal=True), place="there")
    assert lines == ["attention: unrolled in here"] * 2
    caplog.set_level(logging.INFO)
    choose("auto", x, x, x, mask=Mask(causal=True), place="there")
    assert caplog.messages[-1:] == ["attention: unrolled in there"] and len(lines) == 2


def test_only_kernels_for_these_devices_have_a_reason():
    refusals = {"ring": "no windows", "unrolled": "the mask is not causal"}
    lines = []
    with logging_kernels(lines.append):
        log_kernel("reference", "here", refusals)
    assert lines == ["attention: reference in here (ring: no windows)"]
