"""ROUGE against its definition, counted anew."""

import collections

import numpy as np
import pytest

from transformer.evaluation.rouge import rouge_scores

WORDS = [c * 3 for c in "bcdfghjklm"]  # which no stemmer changes


def f1(shared, a, b):
    return 2 * shared / (a + b) if shared else 0.0


def common(a, b):
    """The length of the longest common subsequence."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    return table[-1, -1]


def counted(hypothesis, reference):
    a, b = hypothesis.split(), reference.split()
    scores = []
    for n in (1, 2):
        mine, theirs = (
            collections.Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1)) for x in (a, b)
        )
        scores.append(f1((mine & theirs).total(), mine.total(), theirs.total()))
    return [*scores, f1(common(a, b), len(a), len(b))]


def text(rng):
    return " ".join(rng.choice(WORDS, rng.integers(4, 12)))


def test_equals_its_definition_with_the_best_of_several_references(rng):
    hypotheses = [text(rng) for _ in range(6)]
    references = [[text(rng) for _ in range(rng.integers(1, 4))] for _ in range(6)]
    best = [
        np.max([counted(hypothesis, each) for each in given], axis=0)
        for hypothesis, given in zip(hypotheses, references, strict=True)
    ]
    got = rouge_scores(hypotheses, references)
    assert list(got) == ["rouge1", "rouge2", "rougeL"] and all(type(value) is float for value in got.values())
    np.testing.assert_allclose(list(got.values()), np.mean(best, axis=0), atol=1e-9)
    alone = rouge_scores(hypotheses, [given[0] for given in references])
    first = [counted(h, given[0]) for h, given in zip(hypotheses, references, strict=True)]
    np.testing.assert_allclose(list(alone.values()), np.mean(first, axis=0), atol=1e-9)


def test_case_and_endings_do_not_count_and_lengths_must_agree():
    assert rouge_scores(["The dogs WALKED"], ["the dog walks"])["rouge2"] == pytest.approx(1)
    with pytest.raises(ValueError):
        rouge_scores(["a"], [])
