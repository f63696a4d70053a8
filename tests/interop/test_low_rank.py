"""Low-rank adapters of kernels that are one tensor of another library: against float64 products."""

from fractions import Fraction

import numpy as np
import pytest

from transformer.interop.adapters.low_rank import LowRank, fused, halves, is_linear, parted
from transformer.interop.tensor_rules import Rule, places

OURS = ("query/kernel", "key/kernel", "value/kernel")
RULES = {
    "Conv1D": Rule(OURS, "{n}.c_attn.weight", "d (c h k) -> c d h k"),
    "Linear": Rule(OURS, "{n}.Wqkv.weight", "(c h k) d -> c d h k"),
    "in_turn": Rule(OURS, "{n}.qkv.weight", "(h k) d -> d h k", in_turn=True),
    "turns": Rule(OURS, "{n}.qkv.weight", "(h k) d -> d h k", in_turn=True, turns=2),
    "joined": Rule("output/kernel", "{n}.o.weight", "d (h k) -> h k d"),
    "plain": Rule("up/kernel", "{n}.c_fc.weight"),
}
SHAPES = {"joined": (2, 3, 4, 5), "plain": (2, 5, 6)}
"""(layers, ...) of our kernel."""

FULL = (2, 5, 3, 4)


def places_of(kind):
    rule = RULES[kind]
    shapes = dict.fromkeys(rule.paths, SHAPES.get(kind, FULL))
    shapes |= dict.fromkeys(OURS[1:], (2, 5, 1, 4)) if rule.in_turn else {}
    return list(places([rule], shapes).values())


def drawn(rng, place, part, rank):
    """A and B of a part, in the axes of PEFT."""
    return tuple(rng.normal(size=half.shape).astype(np.float32) for half in halves(place, part, rank))


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("parts", [(0, 1, 2), (0, 2), (1,)])
def test_the_fused_adapter_changes_each_part_as_its_own_does(rng, kind, parts):
    """W + s down . up of each of our kernels, by our axes in float64, is a part of the change of theirs."""
    scale, rank = Fraction(3, 2), 2
    for place in places_of(kind):
        assert is_linear(place)
        chosen = parts if len(place.paths) > 1 else (0,)
        pairs = [drawn(rng, place, i, rank) if i in chosen else None for i in range(len(place.paths))]
        a, b = fused(pairs, place.shape[kind in ("Conv1D", "plain")], place.rows)
        assert len(a) == rank * len(chosen)
        kernel = rng.normal(size=place.shape).astype(np.float32)
        change = LowRank(a, place.by_turn(b), scale).applied(kernel, place) - np.float64(kernel)
        for number, pair in enumerate(pairs):
            found = place.ours(change, number)
            expected = np.zeros(found.shape)
            if pair:
                down, up = (
                    np.float64(half.ours(x, 0))
                    for half, x in zip(halves(place, number, rank), pair, strict=True)
                )
                expected = 1.5 * np.tensordot(down, up, 1)
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["Conv1D", "Linear", "in_turn", "turns"])
@pytest.mark.parametrize("parts", [(0, 1, 2), (0, 2), (1,)])
def test_parts_come_back_bit_by_bit(rng, kind, parts):
    layers = []
    for place in places_of(kind):
        pairs = [drawn(rng, place, i, 2) if i in parts else None for i in range(3)]
        outputs = place.shape[kind == "Conv1D"]
        a, b = fused(pairs, outputs, place.rows)
        layers.append((place, pairs, LowRank(a, place.by_turn(b), Fraction(1))))
    back = parted([(place, low) for place, _, low in layers])
    assert len(back) == 2 * len(parts)
    for place, pairs, _ in layers:
        for i in parts:
            low = back[place.paths[i], place.index]
            np.testing.assert_array_equal(low.a, pairs[i][0])
            np.testing.assert_array_equal(low.b, pairs[i][1])


def test_an_adapter_of_all_parts_is_that_of_each_and_comes_back(rng):
    """As PEFT trains it: one A, and B without blocks of zeros; ranks of zeros are left out."""
    layers = []
    for place in places_of("Conv1D"):
        a, b = rng.normal(size=(4, 5)).astype(np.float32), rng.normal(size=(36, 4)).astype(np.float32)
        layers.append((place, LowRank(a, b, Fraction(1))))
    back = parted(layers)
    assert len(back) == 6
    for place, low in layers:
        own = [back[path, place.index] for path in place.paths]
        wider = [(np.pad(x.a, ((0, 2), (0, 0))), np.pad(x.b, ((0, 0), (0, 2)))) for x in own]
        for x, y in zip(fused(wider, 36), (low.a, low.b), strict=True):
            np.testing.assert_array_equal(x, y)


def test_one_layer_without_blocks_makes_all_layers_share(rng):
    places_ = places_of("Conv1D")
    blocks = fused([drawn(rng, places_[0], i, 1) for i in range(3)], 36)
    full = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(36, 3)).astype(np.float32)
    layers = [
        (place, LowRank(*pair, Fraction(1))) for place, pair in zip(places_, (blocks, full), strict=True)
    ]
    assert {low.a.shape for low in parted(layers).values()} == {(3, 5)}


def test_adapters_of_zeros_are_none(rng):
    zeros = np.zeros((2, 5), np.float32), np.zeros((36, 2), np.float32)
    assert fused([zeros], 36) is None and fused([None, None, None], 36) is None
    untrained = rng.normal(size=(2, 5)).astype(np.float32), zeros[1]
    np.testing.assert_array_equal(fused([untrained], 36)[0], untrained[0])
