import sys

import pytest

from transformer.data.packed_text import TextData, TextDataConfig
from transformer.data.sources import open_source
from transformer.data.sources.base import SPLITS
from transformer.errors import UserError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def pattern(tmp_path, rng):
    """Two files of several row groups; some rows have no text."""
    for name, count in (("a", 300), ("b", 57)):
        texts = [f"{name}{i} é {rng.integers(100)}" if i % 10 != 5 else None for i in range(count)]
        table = pyarrow.table({"id": range(count), "text": texts, "other": ["x"] * count})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=40)
    return f"parquet:{tmp_path}/*.parquet"


def texts_of(table):
    return [text for text in table.column("text").to_pylist() if text is not None]


def test_rows_in_their_order_and_at_random(pattern, tmp_path, rng):
    source = open_source(pattern, "train", field="text", cache_dir=tmp_path, divide=False)
    expected = [text for name in "ab" for text in texts_of(parquet.read_table(tmp_path / f"{name}.parquet"))]
    assert [*source.texts()] == expected
    for index in rng.integers(0, len(expected), 50).tolist():
        assert source[index] == {"text": expected[index]}


def test_every_row_is_in_one_split(pattern, tmp_path):
    splits = [open_source(pattern, split, field="text", cache_dir=tmp_path) for split in SPLITS]
    found = [text for split in splits for text in split.texts()]
    assert len({*found}) == len(found) == len(open_source(pattern, "train", field="text", divide=False))
    assert all(len(split) for split in splits) and len(splits[0]) > 0.8 * len(found)


def test_a_number_is_read_as_text_when_asked(pattern, tmp_path):
    options = {"field": "id", "divide": False}
    assert open_source(pattern, "train", numbers=True, **options)[41]["id"] == "41"
    with pytest.raises(UserError, match=r"a\.parquet: 'id' is int64; expected text$"):
        len(open_source(pattern, "train", **options))


def test_it_is_a_source_of_a_mixture(pattern, tmp_path):
    (tmp_path / "c.txt").write_text("other text\n" * 500)
    weights = {pattern: 3, f"text:{tmp_path}/c.txt": 1}
    config = TextDataConfig(sources=weights, tokenizer="bytes", sequence_length=16, cache_dir=str(tmp_path))
    data = TextData.of(config)
    batch = data.loader("train", 8, seed=1, shuffle=True, repeat=True).batch_at(3)
    assert sum("text" in data.tokenizer.decode(row.tolist()) for row in batch["tokens"]) == 2


def test_mistakes(pattern, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"a\.parquet: no column 'body'; columns there: id, text, other$"):
        len(open_source(pattern, "train", field="body"))
    (tmp_path / "c.parquet").write_text("text\n")
    with pytest.raises(UserError, match=r"c\.parquet: not a Parquet file$"):
        len(open_source(pattern, "train", field="text"))
    with pytest.raises(UserError, match=r"none\.parquet: no such file"):
        open_source(f"parquet:{tmp_path}/none.parquet", "train", field="text")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"needs pyarrow: `pip install pyarrow`$"):
        len(open_source(pattern, "train", field="text"))
