"""BLEU against its definition, counted again."""

import collections
import math

import numpy as np
import pytest

from transformer.evaluation.text.bleu import bleu, bleu_by_length


def counted(hypotheses, references):
    """Papineni et al. 2002, section 2.3, of texts whose words are separated by spaces."""
    matches, totals, words, wanted = np.zeros(4), np.zeros(4), 0, 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        a, b = hypothesis.split(), reference.split()
        words, wanted = words + len(a), wanted + len(b)
        for n in range(4):
            mine, theirs = (
                collections.Counter(tuple(x[i : i + n + 1]) for i in range(len(x) - n)) for x in (a, b)
            )
            matches[n] += (mine & theirs).total()
            totals[n] += mine.total()
    return 100 * min(1.0, math.exp(1 - wanted / words)) * math.exp(np.log(matches / totals).mean())


def pairs(rng, count=8):
    """Sentences and copies of them with words left out or changed, which still share runs of four."""
    references = [[f"w{i}" for i in rng.integers(0, 30, rng.integers(12, 20))] for _ in range(count)]
    hypotheses = [
        [word if rng.random() < 0.9 else "X" for word in words[rng.integers(0, 2) :]] for words in references
    ]
    return [" ".join(words) for words in hypotheses], [" ".join(words) for words in references]


def test_equals_its_definition_and_names_what_was_counted(rng):
    hypotheses, references = pairs(rng)
    score, signature = bleu(hypotheses, references)
    assert type(score) is float
    assert score == pytest.approx(counted(hypotheses, references), abs=1e-6)
    assert "tok:13a" in signature and "case:mixed" in signature and "nrefs:1" in signature
    assert bleu(references, references)[0] == pytest.approx(100)


def test_case_counts_and_punctuation_is_a_word():
    assert bleu(["a small dog ran ."], ["a small dog ran."])[0] == pytest.approx(100)
    assert bleu(["A Small Dog Ran away"], ["a small dog ran away"])[0] < 50


def test_by_length_every_range_is_scored_alone(rng):
    hypotheses, references = pairs(rng, 30)
    lengths = rng.integers(0, 40, 30)
    got = bleu_by_length(hypotheses, references, lengths, [5, 20, 30, 100, 200])
    expected = []
    for low, high in ((5, 20), (20, 30), (30, 100)):
        there = np.flatnonzero((lengths >= low) & (lengths < high))
        if len(there):
            parts = ([texts[i] for i in there] for texts in (hypotheses, references))
            expected.append((low, high, len(there), pytest.approx(counted(*parts))))
    assert got == expected
