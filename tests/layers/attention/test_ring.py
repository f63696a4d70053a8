"""Ring attention on virtual devices against the reference on one."""

import contextlib
import dataclasses
import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.layers.attention.test_kernels import segments
from tests.layers.table import Table
from transformer.errors import UserError
from transformer.layers.attention.kernels import KERNELS, blockwise, choose, parts, reference, ring
from transformer.layers.attention.kernels.position_scoring import PositionScoring
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Strided, Window
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.training import parallel

ring_module = importlib.import_module("transformer.layers.attention.kernels.ring")  # which is also a function
RULES = (("batch", "data"), ("length", "context"))
CONFIG = DecoderConfig(
    norm="layer", d_model=16, num_layers=1, num_heads=4, num_kv_heads=2, d_ff=32, vocab_multiple=8
)


@contextlib.contextmanager
def around(devices, data=1):
    sizes, axes = (data, devices), (AxisType.Auto,) * 2
    mesh = jax.make_mesh(sizes, ("data", "context"), axes, devices=jax.devices()[: data * devices])
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield mesh


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(kernel, inputs, learned, dout, mask, scoring):
    def weighed(inputs, learned):
        out = kernel(*inputs, mask=mask, scoring=dataclasses.replace(scoring, **learned))
        return jnp.sum(out * dout), out

    return jax.value_and_grad(weighed, argnums=(0, 1), has_aux=True)(inputs, learned)


def assert_like_one_device(rng, devices, mask, t, s=None, *, data=1, scoring=None, learned=None, b=2, g=2):
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    s = s or t
    inputs, dout = (draw(b, t, 4, 8), draw(b, s, g, 8), draw(b, s, g, 8)), draw(b, t, 4, 8)
    given = inputs, learned or {}, dout, mask, scoring or Scoring()
    expected = with_gradients(reference, *given)
    with around(devices, data):
        assert choose("auto", *inputs, mask=mask, scoring=given[-1]) is ring or devices == 1
        got = with_gradients(KERNELS["ring"].attend, *given)
    (_, out), _ = got
    assert len(out.sharding.device_set) == devices * data
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=3e-5), got, expected)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("devices,data", [(1, 1), (2, 2), (4, 1), (8, 1)])
def test_packed_segments_under_a_causal_mask(rng, devices, data):
    packed = jnp.asarray(segments(rng, 2, 48))
    assert_like_one_device(rng, devices, Mask(packed, packed, causal=True), 48, data=data)


@pytest.mark.thorough
def test_blocks_of_the_kernel_inside_the_parts_of_the_ring(rng, monkeypatch):
    """Parts of 5 tokens in blocks of 2: the last block of each is filled up."""
    monkeypatch.setattr(parts, "SIZES", (2,))
    assert_like_one_device(rng, 4, Mask(causal=True), 40)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "window", [Window(1), Window(4), Window(8), Window(4, dilation=3), Window(99)], ids=repr
)
def test_a_window_passes_keys_on_only_as_far_as_it_reaches(rng, window):
    """Parts of 6 tokens: the first of a part reaches `reach` - 1 tokens back."""
    packed = jnp.asarray(segments(rng, 2, 24))
    assert_like_one_device(rng, 4, Mask(packed, packed, causal=True, pattern=window), 24)
    assert_like_one_device(rng, 4, Mask(causal=True, pattern=window), 24)  # no segment hides the last keys
    x = jnp.zeros((1, 24, 2, 8))
    with around(4):
        program = str(jax.make_jaxpr(lambda x: ring(x, x, x, mask=Mask(causal=True, pattern=window)))(x))
    passes = min(3, -(-(window.reach - 1) // 6))
    assert program.count("ppermute") == 2 * (passes + 1)  # of keys and values; no one needs the last


@pytest.mark.thorough
def test_rows_that_may_see_nothing(rng):
    valid = rng.random((2, 24)) < 0.4
    valid[0] = False
    valid[:, :2] = False  # the first queries have no key at all
    assert_like_one_device(rng, 4, Mask(key_valid_bs=jnp.asarray(valid), causal=True), 24)


@pytest.mark.thorough
def test_without_a_causal_mask_the_lengths_may_differ(rng):
    target, source = jnp.asarray(segments(rng, 2, 9)), jnp.asarray(segments(rng, 2, 15))
    assert_like_one_device(rng, 3, Mask(target, source), 9, 15)


@pytest.mark.thorough
def test_positions_sinks_and_soft_cap(rng):
    """The biases' table is whole on every device, and its gradient the sum of what all found."""
    t = 16
    places = jnp.arange(t)[None]
    tables = {"bias": rng.normal(size=(4, 32, 32)), "values": rng.normal(size=(32, 8))}
    learned = {
        "params": jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tables),
        "sinks_h": jnp.asarray(rng.normal(size=4), jnp.float32),
    }
    scoring = PositionScoring(places, places, position=Table(heads=4), soft_cap=1.5)
    assert_like_one_device(rng, 2, Mask(causal=True), t, scoring=scoring, learned=learned)


@pytest.mark.thorough
def test_keys_go_round_and_are_nowhere_gathered(rng):
    x = jnp.zeros((2, 64, 2, 8))
    with around(4, data=2) as mesh:
        cut = NamedSharding(mesh, PartitionSpec("data", "context"))
        given = (x, x, x), {}, x, Mask(causal=True), Scoring()
        lowered = with_gradients.lower(ring, *jax.device_put(given[:1], cut), *given[1:])
        around_ring = lowered.compile().as_text()
        lowered = with_gradients.lower(reference, *jax.device_put(given[:1], cut), *given[1:])
        by_itself = lowered.compile().as_text()
    assert "collective-permute" in around_ring
    assert "all-gather" not in around_ring and "all-to-all" not in around_ring
    assert "all-gather" in by_itself  # so that its absence says something
    sizes = [np.prod([int(n) for n in x.split(",")]) for x in re.findall(r"f32\[([\d,]+)\]", around_ring)]
    assert max(sizes) <= 2 * 2 * 16 * 16  # nowhere the weights of 16 queries, of 64, for all 64 keys


def test_every_device_multiplies_the_same_under_a_causal_mask(monkeypatch):
    """Each of n devices sees, over all rounds, 2 n + 1 of its own pairs of blocks, and all of them once."""
    n, seen = 4, []
    for device in range(n):
        way = ring_module._Ring(("context",), n, True, None, 2)
        monkeypatch.setattr(ring_module._Ring, "index", device)
        blocks = [(i, 2 * n - 1 - i) for i in range(n)]
        pairs = [(device, *pair) for pair in way.own] + [(device, 1, 0)]
        for distance in range(1, n):
            pairs += [((device - distance) % n, *pair) for pair in way.others(jnp.int32(distance))]
        assert len(pairs) == 2 * n + 1
        seen += [(blocks[device][int(i)], blocks[source][int(j)]) for source, i, j in pairs]
    assert sorted(seen) == [(i, j) for i in range(2 * n) for j in range(i + 1)]


@pytest.mark.thorough
def test_a_model_on_a_mesh_with_context_and_tensor_is_that_on_one_device(rng):
    """Heads over `tensor`, rows over `data`, tokens over `context`; a bias for each head goes along."""
    tokens = jnp.asarray(rng.integers(0, 32, (2, 16)))
    packed, made = jnp.asarray(segments(rng, 2, 16)), {}
    for kernel in ("reference", "ring"):
        model = Decoder(dataclasses.replace(CONFIG, kernel=kernel, position="alibi"), 32)
        made[kernel] = jax.jit(jax.value_and_grad(functools.partial(mean_square, model)))
    boxed = jax.eval_shape(model.init, jax.random.key(0), tokens[:1, :1])["params"]
    params = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape, scale=0.3), x.dtype), nn.meta.unbox(boxed)
    )
    expected = made["reference"](params, tokens, packed)
    mesh = parallel.make_mesh(parallel.MeshConfig(data=2, fsdp=1, tensor=2, context=2))
    with parallel.placed(mesh, parallel.RULES["default"]):
        batch = parallel.put_batch({"tokens": tokens, "packed": packed}, parallel.batch_sharding(mesh))
        text = made["ring"].lower(params, **batch).compile().as_text()
        got = made["ring"](params, **batch)
    assert "collective-permute" in text
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4, rtol=2e-3), got, expected)


def mean_square(model, params, tokens, packed):
    return jnp.mean(jnp.square(model.apply({"params": params}, tokens, segments_bt=packed)))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "mask,t,rate,message",
    [
        (Mask(pattern=Window(3)), 16, 0.0, "only causal windows, and this one is Window"),
        (Mask(causal=True, pattern=Strided(3)), 16, 0.0, "only causal windows, and this one is Strided"),
        (Mask(causal=True), 16, 0.1, "no dropout"),
        (Mask(causal=True), 20, 0.0, "20 tokens cannot be cut into 8 equal blocks for 4 devices"),
    ],
)
def test_refusals_name_the_reason(mask, t, rate, message):
    x = jnp.zeros((1, t, 2, 8))
    with around(4):
        with pytest.raises(UserError, match=f"'ring' does not support these inputs: .*{message}"):
            choose("ring", x, x, x, mask=mask, dropout_rate=rate)
        assert choose("auto", x, x, x, mask=mask, dropout_rate=rate) is not ring
    assert choose("ring", x, x, x, mask=mask, dropout_rate=rate) is ring  # which is `blockwise` on one device
    np.testing.assert_array_equal(ring(x, x, x + 1, mask=mask), blockwise(x, x, x + 1, mask=mask))
