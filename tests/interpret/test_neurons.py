import numpy as np
import pytest

from tests.interpret.subjects import subject_of
from transformer.interpret.instruments.neurons import table, top_activations


@pytest.mark.parametrize("size", [1, 3, 20])
def test_the_largest_activations_are_those_of_the_whole_array(rng, size):
    x_mf = np.maximum(rng.normal(size=(20, 4)), 0).round(1)  # with ties
    tops = top_activations((x_mf[i : i + size] for i in range(0, 20, size)), 5)
    for unit, x_m in enumerate(x_mf.T):
        expected = sorted(range(20), key=lambda i, x_m=x_m: (-x_m[i], i))[:5]
        assert list(tops.tokens_fk[unit]) == expected
        np.testing.assert_array_equal(tops.values_fk[unit], x_m[expected])
    np.testing.assert_allclose(tops.mean_f, x_mf.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(tops.std_f, x_mf.std(axis=0), atol=1e-7)
    np.testing.assert_allclose(tops.active_f, (x_mf > 0).mean(axis=0))


@pytest.mark.thorough
def test_a_table_does_not_depend_on_the_batch_size_and_has_no_padding(rng):
    rows_nt = rng.integers(0, 18, (8, 8))
    rows_nt[::2, -2:] = 18  # padding
    seed = rng.integers(10**6)
    tables = [
        table(subject_of(np.random.default_rng(seed), rows_nt, size, {"site": None}, feed_forward="relu"))
        for size in (2, 8)
    ]
    assert tables[0].texts == tables[1].texts and tables[0].rows == tables[1].rows
    assert tables[0].notes == tables[1].notes
    assert "18" not in {name for row in tables[0].texts for name in row}
    np.testing.assert_allclose(tables[0].values_rc, tables[1].values_rc, atol=1e-5)


def test_a_context_is_the_text_around_the_token(rng):
    rows_nt = np.arange(16).reshape(2, 8)
    shown = table(subject_of(rng, rows_nt, 1, {"site": "blocks/1"}))
    for names, note in zip(shown.texts, shown.notes[::3], strict=True):
        token = int(names[0])
        row = [str(i) for i in range(16)][token - token % 8 : token + 3]
        end = 6 if token < 8 else 16
        expected = " ".join(f"[{i}]" if int(i) == token else i for i in row if int(i) < end)
        assert note.split("  ")[-1].strip() == expected
