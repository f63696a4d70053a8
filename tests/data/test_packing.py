import itertools

import numpy as np
import pytest

from tests.data.documents import TOKENIZERS, cache_of, packed_by_hand
from transformer.data.text.packed_text import PackedRows

ALPHABET = list("abc \n\té日🙂\ufffd\x00")


def random_texts(rng, count=6, longest=40):
    sizes = rng.integers(0, longest, count)
    return ["".join(rng.choice(ALPHABET, size)) for size in sizes]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("length", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_rows_are_those_made_by_hand(kind, length, rng, tmp_path):
    texts = random_texts(rng)
    cache, tokenizer = cache_of(texts, kind, tmp_path)
    rows = PackedRows(cache, length)
    expected = packed_by_hand(texts, tokenizer, length)
    assert len(rows) == len(expected)
    batch = rows.batch(np.arange(len(rows)))
    for number, row in enumerate(expected):
        for name, values in row.items():
            np.testing.assert_array_equal(rows[number][name], values, err_msg=f"{name} of row {number}")
            np.testing.assert_array_equal(batch[name][number], values)
            assert rows[number][name].dtype == values.dtype


@pytest.mark.parametrize("length", [1, 5, 32])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_token_and_every_byte_counts_once(kind, length, rng, tmp_path):
    texts = random_texts(rng, count=9)
    cache, tokenizer = cache_of(texts, kind, tmp_path)
    rows = PackedRows(cache, length)
    batch = rows.batch(rng.permutation(len(rows)))
    assert batch["weights"].sum() == sum(len(tokenizer.encode(text)) + 1 for text in texts)
    assert batch["bytes"].sum() == sum(len(text.encode()) for text in texts)
    assert batch["bytes"][batch["weights"] == 0].sum() == 0
    assert batch["bytes"].dtype == np.int32


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_bytes_of_a_document_are_its_own(kind, rng, tmp_path):
    texts = random_texts(rng)
    cache, _ = cache_of(texts, kind, tmp_path)
    for text, (start, end) in zip(texts, itertools.pairwise(cache.offsets), strict=True):
        assert cache.num_bytes[start:end].sum() == len(text.encode())
        assert cache.num_bytes[start] == 0


def test_less_than_one_row_and_rows_of_padding(tmp_path):
    cache, tokenizer = cache_of(["ab"], "bytes", tmp_path)
    rows = PackedRows(cache, 6)
    assert len(rows) == 1
    batch = rows.batch(np.array([0, -1]))
    end = tokenizer.eos_id
    np.testing.assert_array_equal(batch["tokens"], [[end, 97, 98, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(batch["targets"], [[97, 98, end, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(batch["weights"], [[1, 1, 1, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(batch["segments"], [[1, 1, 1, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(batch["positions"], [[0, 1, 2, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(batch["bytes"], [[1, 1, 0, 0, 0, 0], [0] * 6])


def test_a_row_that_is_not_there(tmp_path):
    rows = PackedRows(cache_of(["abc"], "bytes", tmp_path)[0], 2)
    np.testing.assert_array_equal(rows[-1]["tokens"], rows[len(rows) - 1]["tokens"])
    with pytest.raises(IndexError):
        rows[len(rows)]
