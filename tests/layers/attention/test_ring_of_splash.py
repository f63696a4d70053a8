"""Ring attention with the blocks of splash, in Pallas's interpreter on virtual devices, against the reference
on one device."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.sharding import AxisType

from tests.layers.attention.test_kernels import segments
from tests.layers.attention.test_platform_kernels import draw, interpreted, pretend  # noqa: F401
from tests.layers.attention.test_ring import CONFIG, around, mean_square
from tests.layers.table import Table
from transformer.layers.attention.kernels import choose, logging_kernels, reference, ring
from transformer.layers.attention.kernels.position_scoring import PositionScoring
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Window
from transformer.layers.attention.positions import Alibi
from transformer.models.decoder import Decoder
from transformer.training import parallel


@pytest.fixture(autouse=True)
def on_tpus(monkeypatch):
    """What is computed depends on the platform, of which `jax.jit` does not know."""
    pretend(monkeypatch, "tpu")
    with_gradients.clear_cache()


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(kernel, inputs, dout, mask, scoring):
    def weighed(inputs, sinks_h):
        out = kernel(*inputs, mask=mask, scoring=dataclasses.replace(scoring, sinks_h=sinks_h))
        return jnp.sum(out.astype(jnp.float32) * dout), out

    sinks_h = scoring.sinks_h
    argnums = (0,) if sinks_h is None else (0, 1)
    return jax.value_and_grad(weighed, argnums=argnums, has_aux=True)(inputs, sinks_h)


def assert_like_one_device(drawn, mask, scoring=None, *, devices=4, data=1, tolerance=5e-5):
    *inputs, dout = drawn
    exact = [x.astype(jnp.float32) for x in inputs]
    given = dout.astype(jnp.float32), mask, scoring or Scoring()
    (_, out), grads = with_gradients(reference, exact, *given)
    with around(devices, data):
        assert "pallas_call" in str(with_gradients.trace(ring, inputs, *given).jaxpr)
        (_, found), found_grads = with_gradients(ring, inputs, *given)
    assert len(found.sharding.device_set) == devices * data
    for ours, theirs in zip(
        jax.tree.leaves((found, found_grads)), jax.tree.leaves((out, grads)), strict=True
    ):
        error = np.abs(np.asarray(ours, np.float32) - np.asarray(theirs, np.float32)).max()
        assert error <= tolerance * (1 + np.abs(theirs).max()), error


def of(rng, name, t):
    packed = jnp.asarray(segments(rng, 2, t))
    valid = rng.random((2, t)) < 0.4
    valid[0] = False
    valid[:, :2] = False  # the first queries have no key at all
    return {
        "causal": Mask(causal=True),
        "full": Mask(),
        "packed": Mask(packed, packed, causal=True),
        "packed_full": Mask(packed, packed),
        "invalid": Mask(key_valid_bs=jnp.asarray(valid), causal=True),
        "window": Mask(causal=True, pattern=Window(20)),
        "packed_window": Mask(packed, packed, causal=True, pattern=Window(20)),
        "dilated": Mask(causal=True, pattern=Window(7, dilation=3)),
        "sinks": Mask(packed, packed, jnp.asarray(valid), causal=True),
    }[name]


MASKS = ["causal", "full", "packed", "packed_full", "invalid", "window", "packed_window", "dilated", "sinks"]


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", MASKS)
def test_parts_of_whole_and_of_padded_blocks(rng, name):
    """Keys of several heads of queries, and narrower values."""
    t = 64
    scoring = Scoring(sinks_h=jnp.asarray(rng.normal(size=4), jnp.float32), soft_cap=1.5, scale=0.4)
    assert_like_one_device(draw(rng, t=t, k=12, v=8), of(rng, name, t), scoring if name == "sinks" else None)


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", ["causal", "full", "packed"])
def test_blocks_that_need_no_padding(rng, name):
    t = 512 if name != "full" else 256
    assert_like_one_device(draw(rng, t=t, h=2, g=2, k=64), of(rng, name, t), devices=2)


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("heads", [(4, 1), (6, 2)])
def test_alibi_and_half_precision(rng, heads):
    """Positions of documents, each document's first one anywhere."""
    t, (h, g) = 48, heads
    packed = jnp.asarray(segments(rng, 2, t))
    mask, places = Mask(packed, packed, causal=True), jnp.asarray(np.arange(t) + rng.integers(0, 300, (2, 1)))
    scoring = PositionScoring(places, places, {}, position=Alibi(), scale=0.3)
    shape = {"t": t, "h": h, "g": g, "k": 20, "v": 12}
    assert_like_one_device(draw(rng, **shape), mask, scoring, devices=2, data=2, tolerance=2e-4)
    low = draw(rng, **shape, dtype="bfloat16")
    assert_like_one_device(low, mask, scoring, devices=2, data=2, tolerance=0.03)


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreted")
def test_heads_over_devices_too_in_a_model_of_rematerialised_layers(rng):
    """The compiler divides no kernel of Pallas: all axes of the mesh are divided by hand."""
    options = {"position": "alibi", "num_layers": 2, "scan_layers": True, "remat": "attention"}
    tokens = jnp.asarray(rng.integers(0, 32, (2, 16)))
    packed, made = jnp.asarray(segments(rng, 2, 16)), {}
    for kernel in ("reference", "ring"):
        model = Decoder(dataclasses.replace(CONFIG, kernel=kernel, **options), 32)
        made[kernel] = jax.jit(jax.value_and_grad(functools.partial(mean_square, model)))
    boxed = jax.eval_shape(model.init, jax.random.key(0), tokens[:1, :1])["params"]
    params = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape, scale=0.3), x.dtype), nn.meta.unbox(boxed)
    )
    expected = made["reference"](params, tokens, packed)
    mesh = parallel.make_mesh(parallel.MeshConfig(data=2, fsdp=1, tensor=2, context=2))
    with parallel.placed(mesh, parallel.RULES["default"]):
        batch = parallel.put_batch({"tokens": tokens, "packed": packed}, parallel.batch_sharding(mesh))
        program = str(made["ring"].trace(params, **batch).jaxpr)
        assert "f32[2,2,128,64]" in program and "f32[2,4,128,64]" not in program  # padded, half of the heads
        got = made["ring"](params, **batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4, rtol=2e-3), got, expected)


@pytest.mark.thorough
def test_the_blocks_are_lowered_for_tpus(rng):
    """With heads on several devices too, to the kernels' custom calls: none is left for the compiler to
    divide, which it refuses."""
    inputs = draw(rng, t=32, k=64, dtype="bfloat16")[:3]

    def loss(*inputs):
        return jnp.sum(ring(*inputs, mask=Mask(causal=True)).astype(jnp.float32))

    mesh = jax.make_mesh((2, 2), ("tensor", "context"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])
    with jax.set_mesh(mesh), nn.logical_axis_rules((("heads", "tensor"), ("length", "context"))):
        traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*inputs)
        lowered = traced.lower(lowering_platforms=("tpu",)).as_text()
    # Three for the own blocks, for the last block with the first keys, and for those of other devices.
    assert lowered.count("tpu_custom_call") == 9


def logged(devices, rate=0.0, **options):
    x, lines = jnp.zeros((2, 32, 2, 8)), []
    with around(devices), logging_kernels(lines.append):
        assert choose("auto", x, x, x, mask=Mask(causal=True), dropout_rate=rate, place="here", **options)
    return lines


def test_why_the_blocks_are_not_those_of_the_platform(monkeypatch):
    """That JAX has other passes than those known here is a reason, and then the ring uses its own blocks."""
    assert logged(4) == ["attention: ring in here"] and logged(1) == ["attention: splash in here"]
    bias = PositionScoring(position=Table(heads=2))
    assert logged(4, scoring=bias) == [
        "attention: ring in here (splash: its scores and weights are not there for the position to add to)"
    ]

    def renamed(q, k, v, res, do):
        raise AssertionError

    monkeypatch.setattr(kernels, "_splash_attention_bwd", renamed)
    assert logged(4) == [
        f"attention: ring in here (splash: jax {jax.__version__} has not the backward pass of its parts)"
    ]
    monkeypatch.delattr(kernels, "_splash_attention_bwd")
    (line,) = logged(4)
    assert "has not the backward pass" in line
    x = jnp.zeros((2, 32, 2, 8))
    with around(4):
        program = str(jax.make_jaxpr(lambda x: ring(x, x, x, mask=Mask(causal=True)))(x))
    assert "ppermute" in program and "pallas_call" not in program
    pretend(monkeypatch, "nvidia")
    assert logged(4) == ["attention: ring in here (cudnn: its backward pass takes all keys at once)"]
    pretend(monkeypatch, "cpu")
    assert logged(4) == ["attention: ring in here"]
