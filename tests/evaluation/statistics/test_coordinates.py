"""The coordinate check: powers of the width, and which layers drift."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import linregress, ttest_1samp

from transformer.evaluation.statistics.width_powers import Coordinates, coordinates, record
from transformer.layers.block import Block
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from transformer.training.parallel import unboxed
from transformer.visualization.coordinate_plot import draw_coordinates

WIDTHS = [64, 128, 256]
TOKENS = jnp.ones((2, 4), jnp.int32)
SIZES = {"d_model": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}


def found(rng, sizes=None, changes=None):
    """Two layers, 3 seeds, 2 steps; powers of the width of the sizes and changes of the second one."""
    noise = np.exp(rng.normal(scale=0.01, size=(3, 3, 3)))
    widths = np.array(WIDTHS, float)[:, None, None] / 64
    size = {name: noise * widths ** np.array(powers) for name, powers in {"a": [0] * 3, "b": sizes}.items()}
    change = {
        name: noise * widths ** np.array(powers) for name, powers in {"a": [0] * 3, "b": changes}.items()
    }
    for each in change.values():
        each[:, :, 0] = 0
    return Coordinates(WIDTHS, size, change)


def test_powers_are_those_of_the_width(rng):
    check = found(rng, [0, 0.5, 1], [0, -0.5, 0.25])
    np.testing.assert_allclose(check.slopes(check.size["b"]), [0, 0.5, 1], atol=0.05)
    np.testing.assert_allclose(check.slopes(check.change["b"])[1:], [-0.5, 0.25], atol=0.05)
    assert np.isnan(check.slopes(check.change["b"])[0])


@pytest.mark.parametrize("error", [0.05, 0.2])
def test_margins_are_those_of_the_slopes_of_single_seeds(rng, error):
    sizes = np.exp(rng.normal(scale=0.3, size=(3, 4, 2)))
    expected = []
    for step in range(2):
        slopes = [linregress(np.log(WIDTHS), np.log(sizes[:, seed, step])).slope for seed in range(4)]
        low, high = ttest_1samp(slopes, 0).confidence_interval(1 - error)
        expected.append((high - low) / 2)
    sizes[2, 1, 1] = np.inf
    check = Coordinates(WIDTHS, {"a": sizes}, {"a": sizes})
    np.testing.assert_allclose(check.margins(sizes, error), [expected[0], np.nan])
    assert np.isinf(check.margins(sizes[:, :1], error)).all()


@pytest.mark.parametrize(
    ("sizes", "changes", "what"),
    [
        ([0, 0, 0], [0, 0, 0], None),
        ([-0.5, 0, 0], [0, -0.5, 0], None),  # logits start smaller, and catch up
        ([0.5, 0, 0], [0, 0, 0], "initial size"),
        ([0, 0, 0], [0, 0, 0.5], "change"),
        ([0, 0, 0], [0, -0.5, -1], "change"),
        ([0, 0, 0.5], [0, 0, 0], "size"),
    ],
)
def test_layers_that_grow_or_do_not_learn_drift(rng, sizes, changes, what):
    drifting = [*found(rng, sizes, changes).drifting(0.25)]
    assert [(name, why) for name, why, _ in drifting] == ([("b", what)] if what else [])


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_at_one_width_drifts(rng, wrong):
    check = found(rng, [0, 0, 0], [0, 0, 0])
    for each in (check.size["b"], check.change["b"]):
        each[2, 1, 2] = wrong
    assert [*check.drifting(0.25)] == [("b", "change", np.inf)]


def test_a_change_that_falls_towards_a_constant_is_no_drift():
    widths = np.array([32, 64, 128, 256])[:, None, None]
    falling = (0.02 + 0.2 / widths**0.5) * np.ones((4, 3, 2))
    size = np.ones((4, 3, 2))
    check = Coordinates([32, 64, 128, 256], {"a": size}, {"a": falling})
    assert check.slopes(falling)[-1] < -0.25 < -0.22 < check.slopes(falling, first=-2)[-1]
    assert [*check.drifting(0.25)] == []
    assert [name for name, *_ in check.drifting(0.2)] == ["a"]


def test_sizes_are_means_of_absolute_outputs_and_of_their_changes(rng):
    outputs = rng.normal(size=(2, 2, 3, 4, 5))  # widths, seeds, steps
    given = {8 * (i + 1): [[{"x": step} for step in seed] for seed in each] for i, each in enumerate(outputs)}
    check = coordinates(given)
    assert check.widths == [8, 16]
    np.testing.assert_allclose(check.size["x"], np.abs(outputs).mean((3, 4)))
    np.testing.assert_allclose(check.change["x"], np.abs(outputs - outputs[:, :, :1]).mean((3, 4)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sizes_in_16_bits_are_summed_in_more(rng, dtype):
    outputs = rng.normal(size=(2, 1, 2, 64, 512)).astype(dtype)
    given = {8 * (i + 1): [[{"x": step} for step in seed] for seed in each] for i, each in enumerate(outputs)}
    check, exact = coordinates(given), outputs.astype(np.float64)
    np.testing.assert_allclose(check.size["x"], np.abs(exact).mean((3, 4)), rtol=1e-12)
    np.testing.assert_allclose(check.change["x"], np.abs(exact - exact[:, :, :1]).mean((3, 4)), rtol=1e-12)


def test_all_layers_are_recorded_in_the_order_of_computation():
    model = DecoderConfig(**SIZES).build(20)
    params = unboxed(jax.jit(model.init)(jax.random.key(0), TOKENS)["params"])
    seen = {}
    logits = []

    def forward(params):
        logits.append(model.apply({"params": params}, TOKENS))

    jax.jit(lambda params: seen.update(record(forward, Block, params)) or [*seen.values()])(params)
    names = [*seen]
    block = [name.removeprefix("blocks/1/") for name in names if name.startswith("blocks/1/")]
    assert block == [
        *("attention_norm", "attention/key", "attention/value", "attention/query", "attention/output"),
        *("attention", "feed_forward_norm", "feed_forward/up", "feed_forward/down", "feed_forward"),
    ]
    assert names[0] == "embedding" and names[-2:] == ["embedding.attend", "model"]
    assert names.index("blocks/0") < names.index("blocks/1/attention_norm") < names.index("final_norm")
    values = {}
    values.update(record(lambda: forward(params), Block))
    np.testing.assert_array_equal(values["model"], logits[-1])
    np.testing.assert_array_equal(values["embedding"], params["embedding"]["table"][TOKENS])


def test_the_stacks_of_an_encoder_and_a_decoder_are_told_apart():
    model = EncoderDecoder(EncoderDecoderConfig(**SIZES), 20)
    params = unboxed(jax.jit(model.init)(jax.random.key(0), TOKENS, TOKENS)["params"])
    seen = record(lambda: model.apply({"params": params}, TOKENS, TOKENS), Block)
    assert {"encoder/0/attention/query", "decoder/1/cross_attention/key", "decoder/1"} <= seen.keys()


def test_a_picture_is_drawn(rng, tmp_path):
    draw_coordinates(found(rng, [0, 0, 1], [0, 1, 1]), ["b"], tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
