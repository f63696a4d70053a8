"""--mode=verify: what it finds, where, and that sound runs are within their bounds."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import launch
from commands.verification.float64 import Size, in_float64, size
from commands.verification.plain_layers import PLAIN, plain_layers
from commands.verification.rounding_errors import Precision, Row, by_module, error_of, terms
from transformer.layers import normalization
from transformer.layers.attention.kernels import KERNELS
from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.linear import Linear
from transformer.layers.low_contract import _low_contract_backward, _low_contract_forward, low_contract
from transformer.sums import Sum

SMALL = {"model.num_layers": 1, "data.sequence_length": 32, "train.batch_size": 4}


def verify(capsys, config: str = "configs/lm.py:tiny", *more: str, **keys) -> tuple[int, str, str]:
    flags = [f"--config.{key.replace('__', '.')}={value}" for key, value in keys.items()]
    code = launch.main(["--mode=verify", f"--config={config}", *flags, *more])
    said = capsys.readouterr()
    return code, said.out, said.err


def small(capsys, **keys) -> tuple[int, str, str]:
    return verify(capsys, **{key.replace(".", "__"): value for key, value in (SMALL | keys).items()})


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_what_names_a_type_is_computed_in_float64():
    def function(x, y):
        low = jax.lax.dot(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
        return jax.nn.softmax(low).astype(jnp.bfloat16), jnp.arange(3, dtype=jnp.float16) / 3

    x, y = drawn(5, 40), drawn(40, 7)
    (weights, thirds), _ = in_float64(function, x, y)
    e = np.exp(x.astype(np.float64) @ y.astype(np.float64))
    np.testing.assert_allclose(weights, e / e.sum(axis=-1, keepdims=True), rtol=1e-13)
    np.testing.assert_allclose(thirds, np.arange(3) / 3, rtol=1e-15)
    assert weights.dtype == thirds.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_loops_branches_and_updates_in_place():
    def function(x):
        total, parts = jax.lax.scan(lambda c, r: (c + r, c * r), jnp.float32(0), x, reverse=True)
        doubled = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, total))[1]
        chosen = jax.lax.cond(x[0] > 100, lambda: x, lambda: jax.checkpoint(jnp.sin)(x))
        return parts, doubled, chosen, jnp.zeros(4).at[jnp.array([1, 1])].add(x[:2])

    x = drawn(6)
    (parts, doubled, chosen, added), _ = in_float64(function, x)
    wide = x.astype(np.float64)
    after = np.append(np.cumsum(wide[::-1])[::-1][1:], 0)
    np.testing.assert_allclose(parts, after * wide, atol=1e-15)
    np.testing.assert_allclose(doubled, 8 * wide.sum(), rtol=1e-14)
    np.testing.assert_allclose(chosen, np.sin(wide), rtol=1e-14)
    np.testing.assert_allclose(added, [0, wide[0] + wide[1], 0, 0], rtol=1e-15)


def test_random_numbers_are_those_of_float32():
    def drop(x):
        return jnp.where(jax.random.bernoulli(jax.random.key(3), 0.3, x.shape), x, 0)

    x = drawn(200)
    np.testing.assert_array_equal(in_float64(drop, x)[0], drop(x))


def test_a_derivative_of_its_own_is_not_trusted():
    @jax.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, g: (3 * g * x,))
    assert jax.grad(square)(2.0) == 6
    assert in_float64(jax.grad(square), np.float32(2))[0] == 4


def test_the_size_of_a_program():
    def function(x, w):
        return jnp.sum(jax.lax.scan(lambda c, _: ((c @ w) @ w.T, None), x, None, length=5)[0]) + jnp.sum(
            x @ w
        )

    assert size(jax.make_jaxpr(function)(jnp.ones((2, 30)), jnp.ones((30, 40))).jaxpr) == Size(10, 40)


def test_the_bound_grows_as_the_docs_say():
    precision = Precision(stored=2.0**-7, summed=2.0**-23)
    assert precision.bound(Size(16, 2**20)) == pytest.approx(4 * (2.0**-7 + 2.0**-13))


def test_errors_are_relative_and_what_is_masked_is_left_out():
    assert error_of([3.3, 4, -1e9], [3.0, 4, -1e9]) == pytest.approx(0.3 / 5)
    assert error_of([3.0], [3.0, 1.0]) == np.inf
    assert error_of([0.5], [0.0], least=2) == 0.25
    assert np.isnan(error_of([np.nan], [1.0]))
    assert not Row("", "", float("nan"), 1.0).passes
    assert not Row("", "", 2.0, 1.0).passes


def test_a_gradient_of_nothing_is_measured_by_its_module():
    there = {"key": {"kernel": np.array([3.0, 4]), "bias": np.zeros(2)}, "other": {"bias": np.zeros(2)}}
    here = jax.tree.map(lambda x: x + np.array([0.1, 0]), there)
    errors = {row.name: row.error for row in by_module("gradient", here, there, 1.0)}
    assert errors["key/kernel"] == pytest.approx(0.02)
    assert errors["key/bias"] == pytest.approx(0.2)
    assert errors["other/bias"] == pytest.approx(0.1 / (5 / 1e4))


def test_a_term_that_counts_may_miss_a_few():
    there = {"loss": Sum(200.0, 100.0), "accuracy": Sum(40.0, 100.0)}
    here = {"loss": Sum(201.0, 100.0), "accuracy": Sum(42.0, 100.0)}
    loss, accuracy = terms("loss", here, there, {"loss"}, 1e-3)
    assert (loss.error, loss.bound, loss.passes) == (0.005, 1e-3, False)
    assert accuracy.error == 0.02
    assert accuracy.passes


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_layers_are_the_layers(kind):
    base, x = kind.__base__, drawn(3, 4, 6)
    layer = (
        base((2, 5), (None, None, None)) if base is Linear else base(use_bias=base.__name__ == "LayerNorm")
    )
    params = nn.meta.unbox(layer.init(jax.random.key(0), x))
    params = jax.tree.map(lambda p: p + 0.1 * drawn(*p.shape), params)
    with plain_layers():
        plain = layer.apply(params, x)
        assert base.__call__ is kind.__call__
    np.testing.assert_allclose(layer.apply(params, x), plain, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--config=configs/lm.py:tiny", "--steps=-1"], "--steps: -1; expected 0 or more"),
        (["--config=configs/lm.py:tiny", "--tokens=-1"], "--tokens: -1; expected 0 or more"),
        ([], "--workdir is required, or --config is required, such as configs/lm.py"),
    ],
)
def test_mistakes(flags, said, capsys):
    assert launch.main(["--mode=verify", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def broken(monkeypatch):
    """Breaks the kernel, the norm, or the rounding of layers."""

    def mask():
        def attend(*arrays, mask, **more):
            return good.attend(*arrays, mask=dataclasses.replace(mask, causal=False), **more)

        good = KERNELS["unrolled"]
        monkeypatch.setitem(KERNELS, "unrolled", Kernel(attend, good.serves))

    def norm():
        good = normalization._normalize
        scaled = lambda x, scale, *rest: good(x, 1.001 * scale, *rest)  # noqa: E731
        monkeypatch.setattr(normalization, "_normalize", scaled)

    def rounding():
        good = Linear.__call__
        monkeypatch.setattr(
            Linear, "__call__", lambda self, x: good(self, x.astype("float16").astype("float32"))
        )

    return {"mask": mask, "norm": norm, "rounding": rounding}


@pytest.mark.usefixtures("in_root")
class TestRuns:
    """Whole runs."""

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("fault", "place"),
        [
            ("mask", "blocks/attention"),
            ("norm", "blocks/attention_norm"),
            ("rounding", "blocks/attention, before"),
        ],
    )
    def test_a_fault_is_found_and_located(self, fault, place, broken, capsys):
        broken[fault]()
        code, out, _ = small(capsys)
        assert code == 1
        assert re.search(r"^gradient .* FAILS$", out, re.M)
        assert f"the first to differ is the output of {place}" in out

    @pytest.mark.thorough
    def test_a_wrong_gradient_is_found_where_outputs_agree(self, capsys):
        def backward(*inputs):
            dx, dkernel = _low_contract_backward(*inputs)
            return 1.5 * dx, dkernel

        low_contract.defvjp(_low_contract_forward, backward)
        try:
            code, out, _ = small(capsys, **{"model.dtype": "bfloat16"})
        finally:
            low_contract.defvjp(_low_contract_forward, _low_contract_backward)
        assert code == 1
        assert "the first to differ is the gradient of the output of final_norm" in out

    @pytest.mark.thorough
    def test_low_precision_has_its_own_bound(self, broken, capsys):
        keys = {
            "model.dtype": "bfloat16",
            "model.scan_layers": True,
            "model.remat": "full",
            "model.dropout": 0.1,
        }
        keys |= {"model.attention_dropout": 0.1, "loss.chunk_size": 16, "model.num_layers": 2}
        code, out, _ = small(capsys, **keys)
        assert code == 0
        assert out.startswith("without attention_dropout: kernels draw masks of their own\n")
        bounds = [float(bound) for bound in re.findall(r"^gradient .* (\S+)$", out, re.M)]
        assert all(0.01 < bound < 0.1 for bound in bounds)

    @pytest.mark.thorough
    def test_devices_and_microbatches(self, capsys):
        keys = {
            "parallel.microbatches": 2,
            "parallel.mesh.fsdp": 2,
            "parallel.mesh.data": 1,
            "model.dropout": 0.1,
        }
        code, out, _ = small(capsys, **keys)
        assert code == 0
        assert out.startswith("without dropout: microbatches draw other masks\n")

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "config", ["translation", "bert", "transformer_xl", "vision", "classification", "word_embedding"]
    )
    def test_tiny_presets_are_within_their_bounds(self, config, capsys):
        code, out, _ = verify(capsys, f"configs/{config}.py:tiny")
        assert code == 0
        assert re.search(r"^all \d+ within their bounds$", out, re.M)
        assert ("decoding" in out) == (config in ("translation", "transformer_xl"))

    @pytest.mark.thorough
    def test_a_trained_run(self, tmp_path, capsys):
        keys = [f"--config.{key}={value}" for key, value in SMALL.items()]
        assert launch.main(["--config=configs/lm.py:tiny", f"--workdir={tmp_path / 'run'}", *keys]) == 0
        before = sorted(tmp_path.rglob("*"))
        assert launch.main(["--mode=verify", f"--workdir={tmp_path / 'run'}"]) == 0
        assert sorted(tmp_path.rglob("*")) == before
        assert "within their bounds" in capsys.readouterr().out
