"""What a source leaves out is counted by reason, and what is asked of a model has every record."""

import json
import os

import numpy as np
import pytest
from PIL import Image

import launch
from tests import runs
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.images.images import ImageData, ImageDataConfig
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources import open_source
from transformer.data.sources.base import SPLITS
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.errors import UserError

pytestmark = pytest.mark.usefixtures("in_root")


def write_table(path, rows):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    return f"parquet:{path}"


def with_gaps(rng, count):
    """Texts with labels, of which some have one of the two alone; and what is left out of them."""
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(count)]
    no_text, no_label = rng.permutation(count)[:5], rng.permutation(count)[:4]
    for name, numbers in (("text", no_text), ("label", no_label)):
        for number in numbers:
            rows[number][name] = None
    both = len({*no_text} & {*no_label})
    return rows, {"read": count - 9 + both, "no 'text'": 5, "no 'label'": 4 - both}


@pytest.mark.parametrize("count", [60, 400])
@pytest.mark.parametrize("divide", [True, False])
def test_rows_with_null_are_counted_by_the_first_field_that_they_lack(tmp_path, rng, count, divide):
    rows, expected = with_gaps(rng, count)
    name = write_table(tmp_path / "a.parquet", rows)
    options = {"fields": ("text", "label"), "reads": ("text",), "divide": divide, "cache_dir": tmp_path}
    for field in ("text", "label"):
        parts = [open_source(name, split, field=field, **options) for split in SPLITS]
        found = parts if divide else parts[:1]
        assert sum(map(len, found)) == expected["read"]
        assert all(dict(part.tally) == {k: v for k, v in expected.items() if v} for part in parts)


@pytest.mark.parametrize("kind", ["jsonl", "tsv", "csv"])
@pytest.mark.parametrize("divide", [True, False])
def test_empty_lines_are_counted(tmp_path, rng, kind, divide):
    empty = [{"jsonl": " \t", "tsv": "\t ", "csv": ""}[kind], "", ""]
    lines = [*(json.dumps({"text": f"text {i}", "label": "a"}) for i in range(30))]
    if kind != "jsonl":
        lines = [("\t" if kind == "tsv" else ",").join((f"text {i}", "a")) for i in range(30)]
    for line in empty:
        lines.insert(int(rng.integers(len(lines))), line)
    header = [] if kind == "jsonl" else ["text\tlabel" if kind == "tsv" else "text,label"]
    (tmp_path / "a").write_text("\n".join([*header, *lines]) + "\n")
    options = {"field": "text", "fields": ("text", "label"), "divide": divide, "cache_dir": tmp_path}
    parts = [open_source(f"{kind}:{tmp_path}/a", split, **options) for split in SPLITS]
    assert all(part.tally == {"read": 30, "empty line": 3} for part in parts)
    assert sum(map(len, parts)) == (30 if divide else 90)


KINDS = {
    "labelled": (LabelledData, LabelledDataConfig, {"text": None, "label": "a"}, {"text": "b", "label": "b"}),
    "pairs": (PairData, PairDataConfig, {"source": None, "target": "x"}, {"source": "y", "target": "z"}),
    "text": (TextData, TextDataConfig, {"text": None}, {"text": "some text"}),
    "questions": (
        SpanData,
        SpanDataConfig,
        {"question": "who?", "context": None, "answers": {"text": ["a"], "answer_start": [0]}},
        {"question": "who?", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}},
    ),
    "unanswered": (
        SpanData,
        SpanDataConfig,
        {"question": "who?", "context": "b c", "answers": None},
        {"question": "who?", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_answers_every_row(tmp_path, kind):
    """One answer less moves all that follow beside other rows."""
    data, config, without, row = KINDS[kind]
    last = row | ({"label": "c"} if "label" in row else {})
    name = write_table(tmp_path / "a.parquet", [row, without, row, last])
    keys = {"source": name, "validation_source": name, "tokenizer": "bytes"}
    made = data(config(**keys, cache_dir=str(tmp_path / "cache")))
    inputs = [*made.inputs(f"test of {name}")]
    assert len(inputs) == 4 and inputs[0] == inputs[2] == inputs[3] != inputs[1]
    (tally,) = made.tallies("train", "validation").values()
    assert tally["read"] == 3 and sum(tally.values()) == 4


def test_a_conversation_that_is_null_is_named_and_not_passed_over(tmp_path):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    name = write_table(tmp_path / "a.parquet", [{"messages": talk}, {"messages": None}, {"messages": talk}])
    keys = {"source": name, "validation_source": name, "tokenizer": "bytes", "cache_dir": str(tmp_path)}
    made = ChatData(ChatDataConfig(**keys))
    assert len(made.source("train")) == 2 and made.source("train").tally == {"read": 2, "no 'messages'": 1}
    with pytest.raises(UserError, match=r"a\.parquet: row 2: "):
        [*made.inputs(f"test of {name}")]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_reference_that_is_null_leaves_its_pair_and_is_counted(tmp_path, kind):
    more = [None if i in (2, 5) else f"m{i}" for i in range(9)]
    rows = [{"source": f"s{i}", "target": f"t{i}", "more": each} for i, each in enumerate(more)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    name = write_table(tmp_path / "a.parquet", rows) if kind == "parquet" else f"jsonl:{tmp_path}/a.jsonl"
    keys = {"source": name, "validation_source": name, "reference_fields": "more", "tokenizer": "bytes"}
    made = PairData(PairDataConfig(**keys, cache_dir=str(tmp_path / "cache")))
    examples = [*made.examples("validation")]
    assert examples == [(f"s{i}", [f"t{i}"] + [f"m{i}"] * (i not in (2, 5))) for i in range(9)]
    said = made.counted("validation", [source for source, _ in examples])
    assert said == "9 of 9 pairs; 2 references are empty"


def test_images_of_every_suffix_and_in_further_folders(tmp_path, rng):
    def write(path, kind):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(path, kind)

    formats = {"png": "PNG", "JPG": "JPEG", "jfif": "JPEG", "webp": "WEBP", "bmp": "BMP", "tif": "TIFF"}
    for name in ("cat", "dog"):
        for suffix, kind in formats.items():
            write(tmp_path / name / f"a.{suffix}", kind)
            write(tmp_path / name / "more" / "further" / f"b.{suffix}", kind)
        write(tmp_path / name / ".hidden" / "a.png", "PNG")
        write(tmp_path / name / "._a.png", "PNG")
        (tmp_path / name / "notes.txt").write_text("")
        os.symlink("/nowhere/x.png", tmp_path / name / "gone.png")
    os.symlink(tmp_path / "cat", tmp_path / "dog" / "link")
    (tmp_path / "labels.csv").write_text("")
    source = f"folder:{tmp_path}"
    data = ImageData(ImageDataConfig(source=source, cache_dir=str(tmp_path / ".cache"), channels=3))
    expected = {"hidden": 4, "suffix .txt": 2, "link to a file that is not there": 2, "link to a folder": 1}
    expected |= {"read": 24, "beside the folders of classes": 1}
    tally = dict(data.sources("train")[0].tally)
    tally["hidden"] -= 1  # the cache
    assert tally == expected and data.tallies("train", "validation").keys() == {source}
    counts = [data.label_counts(split) for split in SPLITS]
    assert np.sum(counts, axis=0).tolist() == [12, 12]
    assert len([*data.inputs(f"test of {source}")]) == 24


@pytest.mark.thorough
def test_a_run_says_and_keeps_what_is_left_out(tmp_path, capsys):
    text = [json.dumps({"text": f"some text of number {i} " * 5}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(text))
    name, run = f"jsonl:{tmp_path}/a.jsonl", tmp_path / "run"
    assert launch.main(runs.tiny(name, run, "--config.data.tokenizer=bytes")) == 0
    said = f"{name}: 40 read, 39 left out (empty line: 39)"
    assert capsys.readouterr().out.splitlines().count(said) == 1
    assert json.loads((run / "data.json").read_text())["left_out"] == {name: {"read": 40, "empty line": 39}}
    assert launch.main([f"--workdir={run}", "--mode=evaluate"]) == 0
    assert said in capsys.readouterr().out.splitlines()
    answers = ["--mode=predict", f"--input={name}", "--max_new_tokens=1", f"--output={tmp_path}/out"]
    assert launch.main([f"--workdir={run}", *answers]) == 0
    assert capsys.readouterr().err.count(said) == 1
    assert len((tmp_path / "out").read_bytes().splitlines()) == 40


def test_null_is_left_out_or_the_empty_text_of_one_file(tmp_path, rng):
    rows, expected = with_gaps(rng, 60)
    name = write_table(tmp_path / "a.parquet", rows)
    options = {"field": "text", "fields": ("text", "label"), "cache_dir": tmp_path}
    for optional, read in (((), expected["read"]), (("text", "label"), 60)):
        parts = [open_source(name, split, optional=optional, **options) for split in SPLITS]
        assert sum(map(len, parts)) == parts[0].tally["read"] == read
