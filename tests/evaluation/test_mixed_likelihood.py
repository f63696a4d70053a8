import math
from typing import ClassVar

import numpy as np
import pytest

from transformer.data.text.mixture import PartsInTurn
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.training.metrics import Sum


class Targets:
    """A loader of batches of targets with their costs in nats and sizes in bytes."""

    parts: ClassVar = {}

    def __init__(self, nats, sizes):
        self.nats, self.sizes = nats, sizes

    def __len__(self):
        return -(-len(self.nats) // 4)

    def iterate(self, start=0):
        for first in range(4 * start, len(self.nats), 4):
            yield {"nats": self.nats[first : first + 4], "sizes": self.sizes[first : first + 4]}


def step(params, batch):
    nats, size = batch["nats"].sum(), batch["sizes"].sum()
    return {"loss": Sum(nats, len(batch["nats"])), "bits_per_byte": Sum(nats / math.log(2), size)}


def test_the_whole_is_text_in_the_proportions(rng):
    """As if that many targets were drawn from each source that their numbers have the proportions."""
    weights = rng.uniform(0.1, 1, 3)
    data = [(rng.uniform(0, 5, n), rng.integers(1, 9, n)) for n in rng.integers(1, 50, 3)]
    loader = PartsInTurn({name: Targets(*each) for name, each in zip("abc", data, strict=True)}, weights)
    found = LikelihoodEvaluator(step, loader)({})
    nats, sizes = (np.array([each[i].mean() for each in data]) for i in range(2))
    assert found["loss"] == pytest.approx(np.average(nats, weights=weights))
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(weights @ nats / np.log(2) / (weights @ sizes))
    for name, (nats, sizes) in zip("abc", data, strict=True):
        assert found[f"{name}/loss"] == pytest.approx(nats.mean())
        assert found[f"{name}/bits_per_byte"] == pytest.approx(nats.sum() / np.log(2) / sizes.sum())


def test_terms_that_one_source_lacks_are_not_of_the_whole(rng):
    def some(params, batch):
        terms = step(params, batch)
        return terms if batch["sizes"].all() else {"loss": terms["loss"]}

    data = {"a": Targets(rng.uniform(0, 5, 8), np.ones(8)), "b": Targets(rng.uniform(0, 5, 8), np.zeros(8))}
    found = LikelihoodEvaluator(some, PartsInTurn(data, [1, 1]))({})
    assert found.keys() >= {"loss", "a/bits_per_byte", "b/loss"}
    assert not found.keys() & {"bits_per_byte", "b/bits_per_byte"}


def test_the_loss_divided_into_terms_is_weighed_by_all_of_them(rng):
    """As by the position of a target: a source whose texts are short has few of the later ones."""

    def by_half(params, batch):
        here = batch["sizes"] == 1
        return {
            "early": Sum(batch["nats"][here].sum(), here.sum()),
            "late": Sum(batch["nats"][~here].sum(), (~here).sum()),
        }

    sizes = [rng.permutation([1] * 3 + [2] * 5), rng.permutation([1] * 10 + [2] * 2)]
    nats = [rng.uniform(0, 5, len(each)) for each in sizes]
    parts = {name: Targets(*each) for name, each in zip("ab", zip(nats, sizes, strict=True), strict=True)}
    found = LikelihoodEvaluator(by_half, PartsInTurn(parts, [2, 1]), perplexity=False)({})
    late = [n[s == 2] for n, s in zip(nats, sizes, strict=True)]
    expected = 2 / 8 * late[0].sum() + 1 / 12 * late[1].sum()
    assert found["late"] == pytest.approx(expected / (2 / 8 * 5 + 1 / 12 * 2))


def test_the_names_are_those_of_the_results(rng):
    data = {name: Targets(rng.uniform(0, 5, 8), np.ones(8)) for name in "ab"}
    evaluator = LikelihoodEvaluator(step, PartsInTurn(data, [1, 3]))
    names = ["loss", "bits_per_byte", "perplexity"]
    assert sorted(evaluator({})) == sorted([*names, *(f"{each}/{name}" for each in "ab" for name in names)])
