import numpy as np
import pytest

from transformer.decoding.spans import Span, best_spans, scores_of_spans


def by_loop(windows, longest):
    """{(first, last): the highest start + end logit over the windows that hold both}."""
    found = {}
    for offset, logits in windows:
        for i in range(len(logits)):
            for j in range(i, min(i + longest, len(logits))):
                key, score = (offset + i, offset + j), float(logits[i, 0]) + float(logits[j, 1])
                found[key] = max(score, found.get(key, -np.inf))
    return found


@pytest.mark.parametrize("with_nothing", [False, True])
def test_best_spans_over_windows_equal_a_double_loop(rng, with_nothing):
    for _ in range(100):
        length, room, longest = (int(n) for n in rng.integers(1, [25, 12, 9]))
        stride = int(rng.integers(1, room + 1))
        starts = range(0, max(length - room, 0) + stride, stride)
        windows = [
            (s, 3 * rng.normal(size=(min(room, length - s), 2)).astype(np.float32))
            for s in starts
            if s < length
        ]
        expected = by_loop(windows, longest)
        nothing = float(rng.normal() + 3) if with_nothing else -np.inf
        if with_nothing:
            expected[-1, -1] = nothing
        total = sum(np.exp(score) for score in expected.values())
        ranked = sorted(expected.items(), key=lambda item: -item[1])
        n = int(rng.integers(1, 8))
        found = best_spans(scores_of_spans(windows, length, longest), n, nothing)
        assert [(span.first, span.last) for span in found] == [key for key, _ in ranked[:n]]
        for span, (_, score) in zip(found, ranked, strict=False):
            assert span.probability == pytest.approx(np.exp(score) / total, rel=1e-6)


def test_logits_of_any_size_give_probabilities():
    scores = scores_of_spans([(0, np.array([[1e4, -1e4], [0, 1e4]]))], 2, 2)
    assert best_spans(scores, 5)[0] == Span(0, 1, 1.0)
    assert len(best_spans(scores, 5)) == 3  # (1, 0) is not a span
    assert best_spans(scores, 1, nothing=1e6) == [Span(-1, -1, 1.0)]


def test_of_spans_with_one_text_the_best_is_kept(rng):
    """Two spans whose texts differ by white space are one answer to a reader."""
    scores = rng.normal(size=(12, 4))
    ranked = best_spans(scores, scores.size)
    for n in (1, 3, 50):
        chosen = best_spans(scores, n, text=lambda span: span.first % 5)
        firsts = [next(span for span in ranked if span.first % 5 == k) for k in range(5)]
        assert chosen == sorted(firsts, key=lambda span: -span.probability)[:n]
