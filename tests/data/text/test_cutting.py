"""Cut rows are the rows of a shorter packing."""

import numpy as np
import pytest

from tests.data.documents import cache_of
from transformer.data.text.cutting import cut_rows
from transformer.data.text.packed_text import PackedRows


@pytest.mark.parametrize("length", [1, 3, 4, 12])
def test_cut_rows_are_those_of_packing_shorter_ones(length, rng, tmp_path):
    """Of documents that end within rows, and across several, with padding in the last row."""
    texts = ["x" * size for size in rng.integers(0, 40, 12)]
    cache, _ = cache_of(texts, "bytes", tmp_path)
    whole, short = PackedRows(cache, 12), PackedRows(cache, length)
    rows = rng.permutation([-1, *range(len(whole))])
    pieces = rows[:, None] * (12 // length) + np.arange(12 // length)
    pieces = np.where((rows[:, None] < 0) | (pieces >= len(short)), -1, pieces)
    found, expected = cut_rows(whole.batch(rows), length), short.batch(pieces.ravel())
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
        assert found[name].dtype == values.dtype
