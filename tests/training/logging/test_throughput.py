import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from transformer.layers.attention.products import attention_products
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.recurrent import RecurrentConfig
from transformer.training.logging.throughput import (
    matmul_parameters,
    pair_flops_per_token,
    peak_flops,
    run_flops_per_token,
    sizes_of,
    train_flops_per_token,
)
from workdir.opening import open_without_data, read_config


def test_formula_matches_what_the_compiler_counts(rng):
    """One layer written out, without the softmax: XLA's own count of forward and backward."""
    b, t, d, h, k, f, v = 2, *(int(n) for n in rng.integers(8, 40, size=6))
    shapes = {
        "blocks": {
            "attention": {name: {"kernel": (1, d, h, k)} for name in ("query", "key", "value")}
            | {"output": {"kernel": (1, h, k, d)}},
            "feed_forward": {"up": {"kernel": (1, d, f)}, "down": {"kernel": (1, f, d)}},
        },
        "unembedding": {"kernel": (d, v)},
        "embedding": {"table": (v, d)},
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    params = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=is_shape)

    def output(params, x):
        w = jax.tree.map(lambda p: p[0], params["blocks"])
        q, key, value = (
            jnp.einsum("btd,dhk->bthk", x, w["attention"][n]["kernel"]) for n in ("query", "key", "value")
        )
        mixed = jnp.einsum("bhts,bshk->bthk", jnp.einsum("bthk,bshk->bhts", q, key), value)
        x = jnp.einsum("bthk,hkd->btd", mixed, w["attention"]["output"]["kernel"])
        x = x @ w["feed_forward"]["up"]["kernel"] @ w["feed_forward"]["down"]["kernel"]
        return x @ params["unembedding"]["kernel"]

    def step(params, x, cotangent):
        return jax.vjp(output, params, x)[1](cotangent)

    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    compiled = jax.jit(step).lower(params, struct(b, t, d), struct(b, t, v)).compile()
    counted = compiled.cost_analysis()["flops"] / (b * t)
    # The output itself is not computed here, only its gradients: one product of the unembedding less.
    wanted = train_flops_per_token(matmul_parameters(params), 2 * h * k * t) - 2 * d * v
    assert counted == pytest.approx(wanted, rel=0.02)


def products(jaxpr) -> float:
    """FLOPs of all matrix products that a program runs, those in loops as often as these turn."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(shape[i] for i in contracted)
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += turns * products(inner)
    return total


SHAPE = {"d_model": 32, "num_layers": 3, "num_encoder_layers": 2, "vocab_multiple": 1}
PAIRS = {
    "transformer": EncoderDecoderConfig(num_heads=4, d_ff=48, **SHAPE),
    "untied": EncoderDecoderConfig(num_heads=2, tie_embeddings=False, **SHAPE),
    "gru": RecurrentConfig(attention="dot", **SHAPE),
    "additive": RecurrentConfig(attention="additive", cell="lstm", **SHAPE),
    "summary": RecurrentConfig(attention="none", bidirectional=False, **SHAPE),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("s", "t"), [(48, 8), (8, 48)], ids=["long_source", "long_target"])
@pytest.mark.parametrize("name", PAIRS)
def test_each_side_of_a_pair_is_counted_by_its_own_tokens(name, s, t):
    """Against the products of forward and backward pass, counted in the program itself."""
    rnn = name in ("gru", "additive", "summary")
    config = PAIRS[name]
    model = config.build(40)
    source_bs, tokens_bt = jax.ShapeDtypeStruct((2, s), jnp.int32), jax.ShapeDtypeStruct((2, t), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), source_bs, tokens_bt)["params"]
    params = nn.meta.unbox(params)

    def loss(params, source_bs, tokens_bt):
        return jnp.sum(model.apply({"params": params}, source_bs, tokens_bt))

    counted = products(jax.make_jaxpr(jax.grad(loss))(params, source_bs, tokens_bt).jaxpr) / (2 * t)
    if rnn:
        attention = 0 if name == "summary" else 2 * config.d_model * s
    else:
        attention = attention_products(config.encoder_stack, s) * s / t
        attention += attention_products(config.decoder_stack, t, causal=True, memory=s)
    found = pair_flops_per_token(params, attention, s, t)
    if rnn:  # what is not the model's: states computed again for the backward pass, and summaries picked out
        sizes = {key: value["recurrent"]["kernel"].size for key, value in params.items() if "coder" in key}
        recomputed = sum(size * (s / t if "encoder" in key else 1) for key, size in sizes.items())
        found += 2 * recomputed + 4 * s * config.d_model
    if name == "additive":  # whose scores are sums, not products
        found -= 6 * s * config.d_model
    assert found == pytest.approx(counted, rel=1e-6)


def test_a_tied_table_counts_and_a_looked_up_one_does_not():
    tied = {"embedding": {"table": jnp.zeros((7, 3))}, "blocks": {"norm": {"scale": jnp.zeros(3)}}}
    assert matmul_parameters(tied) == 21
    assert matmul_parameters({**tied, "unembedding": {"kernel": jnp.zeros((3, 7))}}) == 21
    assert matmul_parameters({**tied, "blocks": {"up": {"kernel": jnp.zeros((2, 3, 4))}}}) == 21 + 24


@pytest.mark.parametrize(
    ("keys", "frozen"),
    [
        ({}, lambda name: False),
        ({"model.lora_rank": "2", "optimizer.train_only": "lora"}, lambda name: "lora" not in name),
        ({"optimizer.train_only": "blocks"}, lambda name: "blocks" not in name),
    ],
)
def test_what_is_frozen_needs_no_gradients(keys, frozen):
    overrides = [("model.num_layers", "2"), *keys.items()]
    run = open_without_data(read_config("configs/lm.py:tiny", overrides), overrides)
    params = run.abstract.params
    sizes = {name: size for name, size in sizes_of(params).items() if name.endswith(("kernel", "table"))}
    less = 2 * sum(size for name, size in sizes.items() if frozen(name))
    assert run_flops_per_token(run) == pytest.approx(run.experiment.flops_per_token(params) - less)


def test_of_experts_those_of_a_token_count():
    config = DecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24, vocab_multiple=1, num_experts=8)

    def count(config):
        params = jax.eval_shape(config.build(23).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
        return matmul_parameters(nn.unbox(params)["params"], config.expert_share)

    dense = count(dataclasses.replace(config, num_experts=0))
    assert count(config) == dense + 2 * 16 * (24 * 2 + 8)  # a second feed-forward, and the router
    kinds = {"dense": {"num_experts": 0}, "mixed": {"experts_per_token": 1}}
    mixed = dataclasses.replace(config, layers=("dense", "mixed"), layer_kinds=kinds)
    assert count(mixed) == dense + 16 * 8


def test_devices_are_found_by_the_longest_beginning():
    def peak(kind, dtype, count=1):
        return peak_flops([types.SimpleNamespace(device_kind=kind)] * count, dtype)

    assert peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989.4e12
    assert peak("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak("NVIDIA A100-SXM4-40GB", "float32") == 156e12
    assert peak("TPU v5 lite", "float32", 256) == 256 * 197e12
    assert peak("TPU v5", "bfloat16") == 459e12
    assert peak("NVIDIA H100 NVL", "bfloat16") == 835.5e12
    assert peak("NVIDIA GB300", "float32") == 1250e12
    assert peak("TPU7x", "bfloat16", 8) == 4 * 2307e12  # two devices a chip
    assert peak_flops(jax.devices("cpu"), "float32") is None
