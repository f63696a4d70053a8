"""ROUGE against its definition, counted again."""

import collections

import numpy as np
import pytest

from transformer.evaluation.text.rouge import KINDS, Rouge, sentences

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
    got = Rouge().measure(hypotheses, references)
    assert tuple(got) == KINDS and all(type(value) is float for value in got.values())
    # In percent, as it is published; of one sentence each the union of subsequences is the longest one.
    expected = 100 * np.mean(best, axis=0)
    np.testing.assert_allclose(list(got.values()), [*expected, expected[2]], atol=1e-9)


def test_case_and_endings_do_not_count_and_lengths_must_agree():
    assert Rouge().measure(["The dogs WALKED"], [["the dog walks"]])["rouge2"] == pytest.approx(100)
    with pytest.raises(ValueError):
        Rouge().measure(["a"], [])


def test_sentences_end_at_full_stops_and_lines():
    text = "Dr. Smith paid 3.5 dollars. Was it U.S. money? He says so!\nAnother line\n\nends"
    assert sentences(text).split("\n") == [
        "Dr. Smith paid 3.5 dollars.",
        "Was it U.S. money?",
        "He says so!",
        "Another line",
        "ends",
    ]


def test_summaries_are_compared_sentence_by_sentence(rng):
    """Lin 2004, section 3.2: of each reference sentence the words of the union of its longest common
    subsequences with all sentences of the text; here no word is in two sentences."""
    words = rng.permutation([a + b for a in WORDS for b in WORDS])[:60]
    parts = [" ".join(words[i : i + 6]) for i in range(0, 60, 6)]
    wanted = ". ".join(part.capitalize() for part in parts) + "."
    written = ". ".join(parts[i].capitalize() for i in rng.permutation(10)[:5]) + "."
    got = Rouge().measure([written], [[wanted]])
    assert got["rougeLsum"] == pytest.approx(100 * f1(30, 30, 60)) and got["rougeL"] < got["rougeLsum"]


def test_the_signature_says_how_it_is_counted():
    assert Rouge().signature([["a"], ["b"]]).startswith("nrefs:1|score:f1|stem:porter|")
    assert Rouge().signature([["a"], ["b", "c"]]).startswith("nrefs:var|")
