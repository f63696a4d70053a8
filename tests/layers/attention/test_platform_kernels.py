"""The kernels of one platform: what they refuse, and, emulated on any, what they compute."""

import dataclasses
import functools
import importlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.sharding import AxisType

from tests.layers.attention.test_kernels import segments
from tests.layers.table import Table
from transformer import devices
from transformer.errors import UserError
from transformer.layers.attention.kernels import choose, cudnn, reference, splash, unrolled
from transformer.layers.attention.kernels.position_scoring import PositionScoring
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.kernels.splash import _with_distances
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Strided, Window
from transformer.layers.attention.positions import Alibi
from transformer.layers.attention.positions.alibi import slopes

on_gpu = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")


def pretend(monkeypatch, name, capability=None):
    """As if this were that platform; `capability` is of its GPUs, by default of those at hand."""
    if capability:
        cudnn_ = importlib.import_module("transformer.layers.attention.kernels.cudnn")
        monkeypatch.setattr(cudnn_, "compute_capability", lambda: capability)
    for module in (
        "devices",
        "layers.attention.kernels",
        "layers.attention.kernels.cudnn",
        "layers.attention.kernels.splash",
    ):
        module = importlib.import_module(f"transformer.{module}")
        monkeypatch.setattr(module, "platform", lambda: name)


def draw(rng, t=8, h=4, g=2, k=8, b=2, dtype="float32", s=0, v=0):
    s, v = s or t, v or k
    shapes = (b, t, h, k), (b, s, g, k), (b, s, g, v), (b, t, h, v)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def assert_like_reference(kernel, inputs, mask, scoring=None, tolerance=2e-5):
    *inputs, dout = inputs

    @functools.partial(jax.jit, static_argnums=0)
    def with_gradients(kernel, mask, scoring, *inputs):
        out, back = jax.vjp(lambda *x: kernel(*x, mask=mask, scoring=scoring), *inputs)
        return out, *back(dout)

    got = with_gradients(kernel, mask, scoring, *inputs)
    exact = [x.astype(jnp.float32) for x in inputs]
    dout = dout.astype(jnp.float32)
    for ours, theirs in zip(got, with_gradients(reference, mask, scoring, *exact), strict=True):
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs, atol=tolerance, rtol=tolerance)


def masks(rng, t):
    packed = jnp.asarray(segments(rng, 2, t))
    valid = np.arange(t) % 3 > 0  # the first query sees nothing under a causal mask
    valid = jnp.asarray(np.stack([valid, np.zeros(t, bool)]))
    return {
        "full": Mask(),
        "causal": Mask(causal=True),
        "window": Mask(causal=True, pattern=Window(3)),
        "packed": Mask(packed, packed, causal=True),
        "invalid": Mask(key_valid_bs=valid, causal=True),
        "all": Mask(packed, packed, valid, causal=True, pattern=Window(3)),
    }


NAMES = ["full", "causal", "window", "packed", "invalid", "all"]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_what_cudnn_is_asked_is_the_same_attention(rng, monkeypatch, name):
    """JAX's own implementation in its place: masks, windows, groups and biases mean what they should."""
    attend = jax.nn.dot_product_attention

    def without_cudnn(*args, implementation, **options):
        assert implementation == "cudnn"
        return attend(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", without_cudnn)
    mask, places = masks(rng, 8)[name], jnp.arange(8)[None]
    biased = PositionScoring(places, places, {}, position=Alibi(), scale=0.3)
    scoring = biased if name in ("packed", "window") else None
    assert_like_reference(cudnn, draw(rng), mask, scoring)
    assert_like_reference(cudnn, draw(rng, k=12, v=8), mask, scoring)


def test_a_sequence_that_attends_to_itself_is_not_searched_for_queries_without_keys(rng, monkeypatch):
    """Each query is allowed its own key: a pass over all pairs, and one over the output, are left out."""
    attend = functools.partial(jax.nn.dot_product_attention, implementation="xla")
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *args, implementation, **options: attend(*args, **options)
    )
    segments_bt, (*inputs, _) = jnp.asarray(segments(rng, 2, 8)), draw(rng)

    def passes(mask):
        return str(jax.make_jaxpr(lambda *x: cudnn(*x, mask=mask))(*inputs)).count("reduce_or")

    own = Mask.self_attention(segments_bt, None, causal=True)
    others = Mask(segments_bt, segments_bt, causal=True), own.replace(key_valid_bs=jnp.ones((2, 8), bool))
    assert passes(own) == 0 and [passes(mask) for mask in others] == [1, 1]
    assert_like_reference(cudnn, draw(rng), own)


def crossing(rng, t, s):
    """Texts of 1 to 3 tokens: queries of each attend to keys of the same, of which some are invalid."""
    queries, keys = (jnp.asarray(np.sort(rng.integers(0, n // 2, (2, n)))) for n in (t, s))
    return Mask(queries, keys, jnp.asarray(rng.random((2, s)) < 0.8))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ["packed", "invalid", "all", "crossing"])
@pytest.mark.parametrize("scale", [0.0, 1 / 256])
def test_segments_in_columns_of_queries_and_keys_are_the_same_attention(rng, monkeypatch, name, scale):
    """In place of arrays that would be too large, also where some scores are high, and in bfloat16. Float32
    adds numbers of up to 2^15 here, not always those of the columns first."""
    attend, asked = jax.nn.dot_product_attention, []

    def without_cudnn(q, k, v, bias, mask, implementation, **options):
        asked.append((q.shape[-1], bias, mask))
        return attend(q, k, v, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", without_cudnn)
    monkeypatch.setattr(importlib.import_module("transformer.layers.attention.kernels.cudnn"), "SHORT", 0)
    t, s = (21, 34) if name == "crossing" else (40, 40)
    mask = crossing(rng, t, s) if name == "crossing" else masks(rng, t)[name]
    q, k, v, dout = draw(rng, t=t, s=s, k=16, v=8)
    assert_like_reference(cudnn, (9 * q, 9 * k, v, dout), mask, Scoring(scale=scale), tolerance=0.01)
    low = draw(rng, t=t, s=s, k=16, v=8, dtype="bfloat16")
    assert_like_reference(cudnn, low, mask, Scoring(scale=scale), tolerance=0.06)
    assert all(each == (32, None, None) for each in asked)


@pytest.mark.parametrize(
    "t,width,capability,asked",
    [
        (1024, 64, 8.0, (64, True)),
        (4096, 64, 8.0, (80, False)),
        (4096, 128, 8.0, (128, True)),
        (4096, 128, 9.0, (144, False)),
        (2**15, 64, 8.0, (96, False)),
    ],
)
def test_long_rows_have_segments_in_columns_where_they_fit(monkeypatch, t, width, capability, asked):
    """Columns are 14 for 4,096 tokens and 17 for 2^15, in multiples of 16."""
    found = []

    def recorded(q, k, v, bias, mask, **options):
        found.append((q.shape[-1], mask is not None))
        return v

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    pretend(monkeypatch, "nvidia", capability)
    x, packed = jax.ShapeDtypeStruct((1, t, 2, width), "bfloat16"), jax.ShapeDtypeStruct((1, t), "int32")

    def attend(x, packed):
        mask = Mask(packed, packed, causal=True)
        return choose("auto", x, x, x, mask=mask)(x, x, x, mask=mask)

    assert jax.eval_shape(attend, x, packed).shape == x.shape
    assert found == [asked]


@on_gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alibi", [False, True])
def test_cudnn_itself(rng, name, alibi):
    t = 128
    inputs, mask, places = draw(rng, t=t, k=64, dtype="bfloat16"), masks(rng, t)[name], jnp.arange(t)[None]
    scoring = PositionScoring(places, places, {}, position=Alibi()) if alibi else Scoring()
    assert choose("auto", *inputs[:3], mask=mask, scoring=scoring) is cudnn
    assert_like_reference(cudnn, inputs, mask, scoring, tolerance=0.06)


@on_gpu
@pytest.mark.parametrize("name", ["packed", "invalid", "all"])
def test_cudnn_itself_with_segments_in_columns(rng, monkeypatch, name):
    monkeypatch.setattr(importlib.import_module("transformer.layers.attention.kernels.cudnn"), "SHORT", 0)
    inputs, mask = draw(rng, t=128, k=64, dtype="bfloat16"), masks(rng, 128)[name]
    assert_like_reference(cudnn, inputs, mask, tolerance=0.06)


@pytest.fixture
def interpreted(monkeypatch):
    make = functools.partial(splash_attention_kernel.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash_attention_kernel, "make_splash_mha", make)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NAMES, "strided"])
def test_splash_interpreted(rng, interpreted, name):
    mask = Mask(causal=True, pattern=Strided(5)) if name == "strided" else masks(rng, 128)[name]
    scoring = Scoring(soft_cap=1.5) if name == "packed" else None
    assert_like_reference(splash, draw(rng, t=128, h=2, g=1, k=64), mask, scoring, tolerance=2e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["packed", "full", "start", "window", "strided", "future", "wide"])
def test_splash_of_padded_lengths_with_sinks_and_narrower_values(rng, interpreted, case):
    """Gradients of the sinks too. Keys start `start` before the queries, as Transformer-XL's memory does."""
    b, h, t, start = 2, 2, 150, {"start": 90, "window": 90, "strided": 33}.get(case, 0)
    s = {"future": 300}.get(case, start + t)
    pattern = {"window": Window(60), "strided": Strided(7)}.get(case)
    packed = jnp.asarray(segments(rng, b, t)) if case == "packed" else None
    mask = Mask(packed, packed, causal=case != "full", start=start, pattern=pattern)
    *inputs, dout = draw(rng, b=b, t=t, s=s, h=h, g=1, k={"wide": 192, "full": 40}.get(case, 64), v=36)
    sinks_h = jnp.asarray(rng.normal(size=h), jnp.float32)

    def with_gradients(kernel):
        def attend(sinks_h, *inputs):
            return kernel(*inputs, mask=mask, scoring=Scoring(sinks_h=sinks_h, soft_cap=2.0))

        out, back = jax.vjp(attend, sinks_h, *inputs)
        return out, *back(dout)

    for ours, theirs in zip(with_gradients(splash), with_gradients(reference), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=2e-4)


def places(t, start=0):
    """Positions of documents of 60 tokens, of keys that start `start` before the queries."""
    key_positions = (jnp.arange(start + t) % 60 if not start else jnp.arange(start + t) + 70_000)[None]
    return key_positions[:, start:], key_positions


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["packed", "start", "window", "many_heads"])
def test_splash_of_alibi(rng, interpreted, case):
    """Also in bfloat16, for which its columns are exact, far from the beginning of the text."""
    t, start, h = 150, 90 if case in ("start", "window") else 0, 6 if case == "many_heads" else 2
    segments = None if start else jnp.arange(t)[None] // 60 + jnp.zeros((2, 1), int)
    pattern = Window(60) if case == "window" else None
    mask = Mask(segments, segments, causal=True, start=start, pattern=pattern)
    scoring = PositionScoring(*places(t, start), {}, position=Alibi(), scale=0.3)
    shape = {"t": t, "s": start + t, "h": h, "g": 2, "k": 20, "v": 12}
    assert_like_reference(splash, draw(rng, **shape), mask, scoring, tolerance=2e-4)
    assert_like_reference(splash, draw(rng, **shape, dtype="bfloat16"), mask, scoring, tolerance=0.04)


def test_the_columns_of_alibi_are_exact_in_half_precision():
    """Distances of up to 2^24, and slopes that are not powers of two."""
    h, positions = 12, jnp.array([[0, 1, 255, 256, 65_535, 65_536, 1_234_567]])
    q_bhtk, k_bgsk = jnp.zeros((1, h, 7, 0), "bfloat16"), jnp.zeros((1, 1, 7, 0), "bfloat16")
    columns = _with_distances(q_bhtk, k_bgsk, PositionScoring(positions, positions, {}, position=Alibi()))
    query_htc, key_sc = (np.asarray(x[0], np.float64) for x in columns)
    expected_hs = np.array(slopes(h))[:, None] * np.asarray(positions, np.float64)
    np.testing.assert_allclose(query_htc[:, 0] @ key_sc[0].T, expected_hs, rtol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize(("g", "over"), [(2, "tensor"), (1, None)])
def test_splash_on_several_devices(rng, interpreted, g, over):
    four = jax.devices("cpu")[:4]
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), (AxisType.Auto,) * 2, devices=four)
    rules = (("batch", "data"), ("heads", "tensor"), ("kv_heads", over))
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        mask = masks(rng, 128)["packed"]
        scoring = Scoring(sinks_h=jnp.asarray(rng.normal(size=4), jnp.float32))
        assert_like_reference(splash, draw(rng, t=128, h=4, g=g, k=64), mask, scoring, tolerance=2e-4)


@pytest.mark.parametrize("shape", [{"t": 256, "k": 128}, {"t": 200, "k": 192, "v": 128}, {"t": 8, "k": 20}])
def test_splash_is_lowered_for_a_tpu(rng, shape):
    """To the kernel's custom call, without one at hand."""
    inputs, mask = draw(rng, **shape, dtype="bfloat16"), Mask(causal=True)

    def loss(*inputs):
        scoring = Scoring(sinks_h=jnp.zeros(4))
        return jnp.sum(splash(*inputs, mask=mask, scoring=scoring).astype(jnp.float32))

    lowered = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*inputs[:3]).lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("tpu_custom_call") >= 3  # forward, queries, keys and values


def refusals():
    causal, table = Mask(causal=True), PositionScoring(position=Table())
    sinks = Scoring(sinks_h=jnp.zeros(4))
    yield "cudnn", {"dtype": "float32"}, causal, Scoring(), 0.0, "bfloat16 or float16, not in float32"
    yield "cudnn", {"k": 12}, causal, Scoring(), 0.0, "heads are 12 wide"
    yield "cudnn", {"k": 192}, causal, Scoring(), 0.0, "heads are 192 wide, .* multiples of 8 up to 128"
    yield "cudnn", {"k": 64, "v": 72}, causal, Scoring(), 0.0, "and values 72; .* values at most as wide"
    yield "cudnn", {}, Mask(causal=True, pattern=Strided(2)), Scoring(), 0.0, "not Strided"
    yield "cudnn", {}, Mask(pattern=Window(2)), Scoring(), 0.0, "causal window, not Window"
    yield "cudnn", {"t": 7}, Mask(key_valid_bs=jnp.ones((2, 7), bool)), Scoring(), 0.0, "7 and 7 must be even"
    yield "cudnn", {}, causal, sinks, 0.0, "it has no sinks"
    yield "cudnn", {}, causal, Scoring(soft_cap=2.0), 0.0, "it has no soft cap"
    yield "cudnn", {}, causal, table, 0.0, "no weights for the position to add values"
    yield "cudnn", {}, causal, Scoring(), 0.1, "it has no dropout"
    tpu = {"t": 128, "k": 64}
    alibi, capped = PositionScoring(position=Alibi()), PositionScoring(position=Alibi(), soft_cap=2.0)
    yield "splash", tpu, Mask(), alibi, 0.0, "ALiBi only under a causal mask"
    yield "splash", tpu, causal, capped, 0.0, "without a soft cap or sinks"
    yield "splash", tpu, causal, dataclasses.replace(alibi, sinks_h=jnp.zeros(4)), 0.0, "soft cap or sinks"
    yield "splash", tpu, causal, table, 0.0, "not there for the position"
    yield "splash", tpu, causal, Scoring(), 0.1, "it has no dropout"


@pytest.mark.parametrize("kernel,shape,mask,scoring,rate,message", list(refusals()))
def test_refusals_name_the_reason(rng, monkeypatch, kernel, shape, mask, scoring, rate, message):
    pretend(monkeypatch, {"cudnn": "nvidia", "splash": "tpu"}[kernel], capability=8.0)
    q, k, v, _ = draw(rng, **{"dtype": "bfloat16"} | shape)
    options = {"mask": mask, "scoring": scoring, "dropout_rate": rate}
    with pytest.raises(
        UserError, match=f"kernel: '{kernel}' does not support these inputs: .*{message}.*; use 'auto'"
    ):
        choose(kernel, q, k, v, **options)
    assert choose("auto", q, k, v, **options) not in (cudnn, splash)


def test_wide_heads_are_for_a_hopper_at_hand(rng, monkeypatch):
    """JAX asks the devices of this machine, and for others the mesh knows no compute capability."""
    inputs = draw(rng, t=128, k=192, v=128, dtype="bfloat16")[:3]
    pretend(monkeypatch, "nvidia")

    def device(kind, capability):
        return types.SimpleNamespace(platform="gpu", device_kind=kind, compute_capability=capability)

    hopper, blackwell = device("NVIDIA H100 80GB HBM3", "9.0"), device("NVIDIA B200", "10.0")
    for here, kernel in ((hopper, cudnn), (blackwell, unrolled)):
        monkeypatch.setattr(jax, "devices", lambda here=here: [here])
        assert choose("auto", *inputs, mask=Mask(causal=True)) is kernel
    target = jax.sharding.AbstractDevice(hopper.device_kind, None, "gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((8,), ("data",), abstract_device=target)):
        assert devices.compute_capability() == 0.0


def test_an_array_too_large_for_cudnn_is_refused(monkeypatch):
    pretend(monkeypatch, "nvidia", capability=8.0)
    t = 2**14
    x = jax.ShapeDtypeStruct((2, t, 2, 64), "bfloat16")
    packed = jax.ShapeDtypeStruct((2, t), "int32")
    assert choose("auto", x, x, x, mask=Mask(causal=True)) is cudnn
    assert choose("auto", x, x, x, mask=Mask(packed, packed, causal=True)) is cudnn  # in columns
    wide = jax.ShapeDtypeStruct((2, t, 2, 128), "bfloat16")
    with pytest.raises(UserError, match="heads are 144 wide with segments"):
        choose("cudnn", wide, wide, wide, mask=Mask(packed, packed, causal=True))
    one = jax.ShapeDtypeStruct((1, t, 2, 128), "bfloat16")  # its array is not too large
    assert choose("auto", one, one, one, mask=Mask(packed, packed, causal=True)) is cudnn
    with pytest.raises(UserError, match=r"biases would take 2\.0 GiB in each layer; at most 0\.5"):
        choose("cudnn", x, x, x, mask=Mask(causal=True), scoring=PositionScoring(position=Alibi()))


def test_each_platform_has_its_own(rng, monkeypatch):
    q, k, v, _ = draw(rng, t=128, k=64, dtype="bfloat16")
    mask = Mask(causal=True)
    pretend(monkeypatch, "cpu")
    for kind in ("cudnn", "splash"):
        with pytest.raises(UserError, match=f"'{kind}' does not support these inputs: .* and this is cpu"):
            choose(kind, q, k, v, mask=mask)
    assert choose("auto", q, k, v, mask=mask) is unrolled
    for name, kernel in (("nvidia", cudnn), ("tpu", splash), ("METAL", unrolled)):
        pretend(monkeypatch, name)
        assert choose("auto", q, k, v, mask=mask) is kernel


def test_the_platform_is_that_of_the_mesh(monkeypatch):
    """Which may be of devices that no one has here."""
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    mesh = jax.sharding.AbstractMesh((8,), ("data",), abstract_device=device)
    here = jax.default_backend()
    assert devices.platform() == {"gpu": "nvidia"}.get(here, here)
    with jax.sharding.use_abstract_mesh(mesh):
        assert devices.platform() == "nvidia"
