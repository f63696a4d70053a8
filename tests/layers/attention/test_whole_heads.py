"""Key/value heads that every device has whole, where more devices share the query heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.attention.test_platform_kernels import draw, pretend
from transformer.errors import UserError
from transformer.layers.attention.kernels import KERNELS, reference
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.whole_heads import repeated
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.training import parallel

WHOLE = parallel.RULES["whole_kv_heads"]


def grid(**axes):
    return parallel.make_mesh(parallel.MeshConfig(**{"data": -1} | axes), jax.devices()[:8])


@pytest.mark.parametrize(
    ("g", "devices", "heads"), [(1, 4, 4), (2, 4, 4), (2, 8, 8), (4, 2, 4), (6, 4, 12), (2, 1, 2)]
)
def test_heads_are_repeated_until_the_devices_divide_them(rng, g, devices, heads):
    """Outputs and gradients stay those of `reference`."""
    *inputs, dout = draw(rng, h=24, g=g)

    def run(change, *inputs):
        def attend(q, k, v):
            return reference(q, change(k), change(v), mask=Mask(causal=True))

        out, back = jax.vjp(attend, *inputs)
        return out, *back(dout)

    expected = run(lambda x: x, *inputs)
    with parallel.placed(grid(tensor=devices), WHOLE):
        assert jax.eval_shape(repeated, inputs[1]).shape[2] == heads
        outputs = jax.jit(lambda *x: run(repeated, *x))(*inputs)
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-5)


def test_splash_runs_with_fewer_key_heads_than_devices(rng, monkeypatch):
    """Two key heads, eight devices: each computes one query head; without the rule it refuses."""
    pretend(monkeypatch, "tpu")
    *inputs, _ = draw(rng, t=128, h=8, g=2, k=16)
    arguments = *inputs, Mask(causal=True), Scoring(), 0.0
    with parallel.placed(grid(tensor=8), parallel.DEFAULT):
        assert "2 key heads cannot be cut over 1 x 8 devices" in KERNELS["splash"].serves(*arguments)
    with parallel.placed(grid(tensor=8), WHOLE):
        assert not KERNELS["splash"].serves(*arguments)


@pytest.mark.parametrize("rules", ["whole_kv_heads", "sequence_whole_kv_heads"])
@pytest.mark.parametrize("g", [1, 2])
def test_a_model_computes_the_same_with_more_devices_than_key_heads(g, rules):
    """Loss and gradients over fsdp 2 x tensor 4 are those of one device; keys' and values' kernels are whole
    over `tensor`, those of the queries are not."""
    config = DecoderConfig(num_layers=2, d_model=32, num_heads=4, num_kv_heads=g, d_ff=64, max_length=32)
    model, tokens = Decoder(config, 64), np.arange(4 * 32).reshape(4, 32) % 61
    boxed = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
    params = parallel.unboxed(boxed)

    def gradient(params, tokens):
        return jax.value_and_grad(lambda p: jnp.sum(jnp.sin(model.apply({"params": p}, tokens))))(params)

    expected = jax.jit(gradient)(params, tokens)
    mesh, table = grid(fsdp=2, tensor=4), parallel.RULES[rules]
    abstract = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    with pytest.raises(UserError, match=r"'kv_heads'.*parallel.rules=whole_kv_heads keeps it whole"):
        parallel.param_shardings(abstract, mesh, parallel.DEFAULT)
    shardings = parallel.param_shardings(abstract, mesh, table)
    attention = shardings["blocks"]["attention"]
    assert "tensor" not in attention["key"]["kernel"].spec
    assert "tensor" in attention["query"]["kernel"].spec
    with parallel.placed(mesh, table):
        outputs = jax.jit(gradient)(jax.device_put(params, shardings), tokens)
    for ours, theirs in zip(jax.tree.leaves(outputs), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4 * max(1, np.abs(theirs).max()))
