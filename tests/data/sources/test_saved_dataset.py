"""`hf:FOLDER`, with files written as `save_to_disk` of `datasets` 5.2 writes them."""

import json

import pytest

import launch
from transformer.data.sources import open_source
from transformer.data.sources.base import SPLITS
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.errors import UserError

pyarrow = pytest.importorskip("pyarrow")


def save(folder, counts=(70, 30), names=("bad", "good")):
    """A data set of one file for each of `counts`, its rows, in batches of 20; each tenth has no label."""
    folder.mkdir(parents=True)
    features = {"text": {"_type": "Value"}, "label": {"_type": "ClassLabel", "names": [*names]}}
    types = pyarrow.schema([("text", pyarrow.string()), ("label", pyarrow.int64())])
    types = types.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    first, files = 0, []
    for number, count in enumerate(counts):
        files.append({"filename": f"data-{number:05}-of-{len(counts):05}.arrow"})
        rows = range(first, first := first + count)
        columns = {
            "text": [f"row {row} é" for row in rows],
            "label": [row % 2 if row % 10 else -1 for row in rows],
        }
        with pyarrow.ipc.new_stream(folder / files[-1]["filename"], types) as stream:
            stream.write_table(pyarrow.table(columns, schema=types), max_chunksize=20)
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    return f"hf:{folder}"


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path / "saved [1]")


def test_the_files_are_read_in_the_order_that_is_written_down(saved, tmp_path, rng):
    source = open_source(saved, "train", field="text", cache_dir=tmp_path, divide=False)
    assert [*source.texts()] == [f"row {row} é" for row in range(100)]
    for index in rng.integers(0, 100, 50).tolist():
        assert source[index] == {"text": f"row {index} é"}
    state = tmp_path / "saved [1]" / "state.json"
    state.write_text(json.dumps({"_data_files": json.loads(state.read_text())["_data_files"][::-1]}))
    assert next(open_source(saved, "train", field="text", divide=False).texts()) == "row 70 é"


def test_every_row_is_in_one_split(saved, tmp_path):
    found = [
        t for split in SPLITS for t in open_source(saved, split, field="text", cache_dir=tmp_path).texts()
    ]
    assert sorted(found) == sorted(f"row {row} é" for row in range(100))


def test_a_number_of_a_class_is_its_name(saved):
    labels = open_source(saved, "train", field="label", divide=False)
    assert [*labels.texts()] == [["bad", "good"][row % 2] for row in range(100) if row % 10]
    assert labels[1] == {"label": "bad"} and labels[-1] == {"label": "good"}


def test_rows_without_a_label_are_left_out_by_all_that_read_labels_too(saved, tmp_path):
    both = {"fields": ["text", "label"], "divide": False}
    texts, labels = (open_source(saved, "train", field=field, **both) for field in both["fields"])
    assert len(texts) == len(labels) == 90 and texts[8] == {"text": "row 9 é", "label": "good"}
    assert [*texts.texts()] == [f"row {row} é" for row in range(100) if row % 10]
    assert texts.identity != open_source(saved, "train", field="text", divide=False).identity


def test_it_is_a_source_of_a_mixture(saved, tmp_path):
    (tmp_path / "c.txt").write_text("other text\n" * 500)
    weights = {saved: 3, f"text:{tmp_path}/c.txt": 1}
    config = TextDataConfig(sources=weights, tokenizer="bytes", sequence_length=16, cache_dir=str(tmp_path))
    data = TextData.of(config)
    batch = data.loader("train", 8, seed=1, shuffle=True, repeat=True).batch_at(3)
    rows = [data.tokenizer.decode(row.tolist()) for row in batch["tokens"]]
    assert sum("other" in row or "text" in row for row in rows) == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_classifier_is_trained_on_it_and_evaluated_on_another_split(tmp_path, capfd):
    train, test = (save(tmp_path / "both" / split, (90,)) for split in ("train", "test"))
    data = [f"--config.data.source={train}", f"--config.data.validation_source={test}"]
    data += ["--config.data.overlap=1"]
    short = ["--config.data.tokenizer=bytes", "--config.train.steps=2", f"--workdir={tmp_path}/run"]
    arguments = ["--config=configs/classification.py:tiny", *data, *short]
    assert launch.main(arguments) == 0, capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "labels.json").read_text()) == ["bad", "good"]


def test_mistakes(saved, tmp_path):
    def refused(source, said, field="text"):
        with pytest.raises(UserError, match=said):
            len(open_source(source, "train", field=field))

    folder = tmp_path / "saved [1]"
    refused(saved, r"00000-of-00002\.arrow: no column 'body'; columns there: text, label$", "body")
    refused(
        f"hf:{tmp_path}/none", r"^hf:.*none: no folder that `save_to_disk` has written: no .*state\.json$"
    )
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    refused(f"hf:{tmp_path}", r"^hf:.*: it has the splits train, test; name one, hf:.*/train$")
    (tmp_path / "dataset_dict.json").write_text('{"splits": []}')
    refused(f"hf:{tmp_path}", r"^hf:.*: it is empty; expected at least one record$")
    (folder / "data-00001-of-00002.arrow").write_text("text\n")
    refused(saved, r"data-00001-of-00002\.arrow: not a file of Arrow's streaming format$")
    (folder / "data-00001-of-00002.arrow").unlink()
    refused(saved, r"data-00001-of-00002\.arrow: no such file")
    for state in (
        "",
        "[]",
        "{}",
        '{"_data_files": [3]}',
    ):
        (folder / "state.json").write_text(state)
        refused(saved, r"^hf:.*: not readable as what `save_to_disk` writes$")
    (folder / "state.json").write_text('{"_data_files": []}')  # of data without records
    refused(saved, r"^hf:.*: it is empty; expected at least one record$")


def test_a_number_without_a_class_is_named(tmp_path):
    with pytest.raises(UserError, match=r"\.arrow: 'label' is 1; expected a number below 1, or -1$"):
        len(open_source(save(tmp_path / "one", names=("bad",)), "train", field="label"))


def test_names_of_files_lead_to_no_other_folder(saved, tmp_path):
    (tmp_path / "saved [1]" / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "../../other.arrow"}]})
    )
    with pytest.raises(UserError, match=r"saved \[1\]/other\.arrow: no such file$"):
        open_source(saved, "train", field="text")
