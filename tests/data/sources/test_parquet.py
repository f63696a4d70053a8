import datetime
import json
import sys

import numpy as np
import pytest

from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources import open_source
from transformer.data.sources.base import SPLITS
from transformer.data.text.packed_text import TextData, TextDataConfig
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


def test_a_record_has_the_place_of_its_row(pattern, tmp_path):
    source = open_source(pattern, "test", field="text", cache_dir=tmp_path)
    assert len(source) > 5
    for index in range(len(source)):
        file, row = source.place(index).split(": row ")
        assert parquet.read_table(file).column("text")[int(row) - 1].as_py() == source.text(index)


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


def spoken(rng, *more):
    """A question, and an answer to it; `more` other answers."""
    a, b = (int(number) for number in rng.integers(0, 100, 2))
    said = [f"It is {a + b}.", *(f"{each} {a + b} é" for each in more)]
    answers = [{"role": "assistant", "content": text} for text in said]
    return [{"role": "user", "content": f"{a} + {b}?"}], answers


def chats(rng):
    question, (answer,) = spoken(rng)
    return {"messages": [*question, answer], "number": int(rng.integers(9))}


def preferences(rng):
    question, answers = spoken(rng, "perhaps")
    return {"prompt": question[0]["content"]} | dict(
        zip(("chosen", "rejected"), ([e] for e in answers), strict=True)
    )


def preferences_in_conversations(rng):
    question, answers = spoken(rng, "perhaps")
    return dict(zip(("chosen", "rejected"), ([*question, each] for each in answers), strict=True))


def questions(rng):
    number = int(rng.integers(1000))
    context = f"é {number} is written {number:04}."
    answers = {"text": [f"{number:04}"], "answer_start": [context.index("written") + 8]}
    return {"question": f"How is {number} written?", "context": context, "answers": answers}


def labelled(rng):
    return {"text": f"text {rng.integers(1000)}", "label": bool(rng.integers(2))}


def several_targets(rng):
    number = int(rng.integers(1000))
    return {"source": f"house {number}", "target": ["", f"Haus {number}", f"Heim {number}"]}


@pytest.mark.parametrize(
    ("record", "data", "config", "keys"),
    [
        (chats, ChatData, ChatDataConfig, {}),
        (preferences, PreferenceData, PreferenceDataConfig, {}),
        (preferences_in_conversations, PreferenceData, PreferenceDataConfig, {"prompt_field": ""}),
        (questions, SpanData, SpanDataConfig, {}),
        (labelled, LabelledData, LabelledDataConfig, {}),
        (several_targets, PairData, PairDataConfig, {}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_lists_and_objects_are_read_as_in_json_lines(tmp_path, rng, record, data, config, keys):
    """Columns of text are also the features that `datasets` notes, of which a list is written as a list."""
    records = [record(rng) for _ in range(250)]
    features = {name: [{"_type": "Value"}] for name in records[0]}
    table = pyarrow.Table.from_pylist(records)
    noted = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(noted, tmp_path / "a.parquet", row_group_size=40)
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    found = []
    for source in (f"jsonl:{tmp_path}/a.jsonl", f"parquet:{tmp_path}/a.parquet"):
        keys = {"tokenizer": "bytes", "cache_dir": str(tmp_path / "cache")} | keys
        each = data(config(source=source, **keys))
        batches = [each.loader(split, 4).batch_at(0) for split in SPLITS]
        found.append((each.division(), [*each.inputs("test")], batches))
    (counts, inputs, batches), (counts_too, inputs_too, batches_too) = found
    assert counts == counts_too and inputs == inputs_too
    for batch, other in zip(batches, batches_too, strict=True):
        assert batch.keys() == other.keys() and "tokens" in batch
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name], name)


def test_several_references_and_categories(tmp_path):
    columns = {
        "text": [["a", " ", "b"], [], ["c"]],
        "kind": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
        "at": [datetime.datetime(2024, 1, day) for day in (1, 2, 1)],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    name, options = f"parquet:{tmp_path}/a.parquet", {"divide": False, "cache_dir": tmp_path}
    texts = open_source(name, "train", field="text", lists=True, **options)
    assert [texts.alternatives(i) for i in range(3)] == [["a", "b"], [""], ["c"]]
    assert [*open_source(name, "train", field="kind", **options).texts()] == ["x", "y", "x"]
    with pytest.raises(UserError, match=r"a\.parquet: 'text' is list<.*>; expected text$"):
        len(open_source(name, "train", field="text", **options))
    with pytest.raises(UserError, match=r"a\.parquet: 'at' is timestamp.*; expected text$"):
        len(open_source(name, "train", field="at", numbers=True, **options))
    split = [open_source(name, split, field="kind", split_by=["at"], cache_dir=tmp_path) for split in SPLITS]
    assert sorted(source.text(i) for source in split for i in range(len(source))) == ["x", "x", "y"]


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
