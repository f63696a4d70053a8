"""Opening and reading files takes work in proportion to their size: counted, because times vary."""

import json
import mmap
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from commands.evaluate import _write_documents
from experiments.evaluation.multiple_choice import MultipleChoice
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources import open_source
from transformer.data.sources.columnar import ColumnarFiles
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.evaluation import documents

FEW, TIMES = 200, 3
"""The records of the smaller file, of which a hash decides the split, and how many times as many are in the
larger one."""

MOST = 1.3 * TIMES
"""A square would be `TIMES` squared."""


def record(i):
    text = f"record {i} {'word ' * 9}"
    talk = [{"role": "user", "content": text}, {"role": "assistant", "content": f"answer {i}"}]
    question = {"question": f"who {i}?", "context": text, "choices": ["a", "b"], "answer": 1}
    answers = {"answers": {"text": ["record"], "answer_start": [0]}}
    pair = {"text": text, "label": "ab"[i % 2], "source": text, "target": f"target {i}"}
    return pair | question | answers | {"messages": talk, "prompt": text, "chosen": "a", "rejected": "b"}


@pytest.fixture
def work(monkeypatch):
    """Runs a function and returns how many functions it has called, how many bytes of files and rows of
    tables it has read, and how many places of records it has computed."""
    count = Counter()

    class CountedMap(mmap.mmap):
        def __getitem__(self, key):
            part = super().__getitem__(key)
            count["bytes"] += len(part) if isinstance(part, bytes) else 1
            return part

        def find(self, what, start=0, end=None):
            end = len(self) if end is None else min(end, len(self))
            at = super().find(what, start, end)
            count["bytes"] += max((at if at >= 0 else end) - start, 0)
            return at

    def counted_rows(method):
        def read(*arguments):
            rows = method(*arguments)
            count["rows"] += len(rows)
            return rows

        return read

    def frombuffer(buffer, *arguments, original=np.frombuffer, **more):
        count["bytes"] += len(buffer) if isinstance(buffer, mmap.mmap) else 0
        return original(buffer, *arguments, **more)

    def profile(frame, event, _):
        count["calls"] += event in ("call", "c_call")
        count["places"] += event == "call" and frame.f_code.co_name in ("place", "_place")

    monkeypatch.setattr(mmap, "mmap", CountedMap)
    monkeypatch.setattr(np, "frombuffer", frombuffer)
    for name in ("_read", "_values"):
        monkeypatch.setattr(ColumnarFiles, name, counted_rows(getattr(ColumnarFiles, name)))

    def run(function):
        count.clear()
        sys.setprofile(profile)
        try:
            function()
        finally:
            sys.setprofile(None)
        return {name: count[name] for name in ("calls", "bytes", "rows", "places")}

    return run


def write(kind, folder, count):
    """The source of a file of this kind with that many records, and the options to open it. The texts of the
    option `field` ("text") are to be read as `record` gives them, but for white space around them."""
    folder.mkdir()
    records = [record(i) for i in range(count)]
    path, options = folder / "a", {"reads": ("text",), "fields": ("text", "label")}
    if kind in ("jsonl", "array"):
        lines = [json.dumps(each) for each in records]
        path.write_text("\n".join(lines) if kind == "jsonl" else f"[{','.join(lines)}]")
        return f"jsonl:{path}", options
    if kind in ("tsv", "csv"):
        mark = "\t" if kind == "tsv" else ","
        rows = [("text", "label"), *((each["text"], each["label"]) for each in records)]
        path.write_text("".join(f"{mark.join(row)}\n" for row in rows))
        return f"{kind}:{path}", options
    if kind in ("parquet", "hf"):
        pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
        if kind == "hf":
            from tests.data.sources.test_saved_dataset import save  # that file is skipped without pyarrow

            return save(folder / "saved", [count]), options
        parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=50)
        return f"parquet:{path}", options
    if kind == "aligned":
        for name in ("source", "target"):
            (folder / name).write_text("".join(f"{each[name]}\n" for each in records))
        return f"aligned:{folder}/source,{folder}/target", {"reads": ("source",), "field": "target"}
    if kind == "squad":
        names = ("question", "context")
        paragraphs = [
            {"context": each["context"], "qas": [{"question": each["question"], "id": str(i)}]}
            for i, each in enumerate(records)
        ]
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        return f"squad:{path}", {"fields": names, "field": "question"}
    assert kind in ("line", "paragraph"), f"{kind!r} is a source of files; add an entry for it to `write`"
    separator = {"line": "\n", "paragraph": "\n\n"}[kind]
    path.write_text(separator.join(each["text"] for each in records))
    return f"text:{path}", {"document": kind}


SOURCES = ("jsonl", "array", "tsv", "csv", "parquet", "hf", "aligned", "line", "paragraph", "squad")


def is_linear(few, many):
    return all(many[name] <= MOST * few[name] for name in few)


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_is_opened_and_read(tmp_path, work, kind, divide):
    def read(name, options):
        source = open_source(name, "train", divide=divide, cache_dir=tmp_path / "cache", **options)
        assert len({source.text(index) for index in range(len(source))}) > 0.7 * FEW
        assert sum(map(len, source.texts())) > FEW

    found = []
    for count in (FEW, TIMES * FEW):
        name, options = write(kind, tmp_path / str(count), count)
        found.append(work(lambda name=name, options=options: read(name, options)))
    assert is_linear(*found) and found[1]["places"] == 0, found


DATA = {
    "questions": (SpanData, SpanDataConfig, "jsonl"),
    "labels of rows": (LabelledData, LabelledDataConfig, "parquet"),
    "text": (TextData, TextDataConfig, "jsonl"),
    "labels": (LabelledData, LabelledDataConfig, "jsonl"),
    "pairs": (PairData, PairDataConfig, "jsonl"),
    "chat": (ChatData, ChatDataConfig, "jsonl"),
    "chat of rows": (ChatData, ChatDataConfig, "parquet"),
    "preferences": (PreferenceData, PreferenceDataConfig, "jsonl"),
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", DATA)
def test_data_are_counted_and_packed_and_asked(tmp_path, work, kind):
    data, config, of_file = DATA[kind]

    def read(name):
        made = data(config(source=name, tokenizer="bytes", cache_dir=str(tmp_path / "cache")))
        assert len(made.rows("train")) and made.division()
        assert len([*made.inputs(f"test of {name}")]) >= FEW

    found = []
    for count in (FEW, TIMES * FEW):
        name, _ = write(of_file, tmp_path / str(count), count)
        found.append(work(lambda name=name: read(name)))
    assert is_linear(*found) and found[1]["places"] == 0, found


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_documents_are_written_by_their_loss(tmp_path, work, monkeypatch, rng, kind):
    """By their loss, documents are in no order of the file, whose groups of rows are read whole."""
    found = []
    for count in (FEW, TIMES * FEW):
        name, _ = write(kind, tmp_path / str(count), count)
        data = TextData(TextDataConfig(source=name, tokenizer="bytes", cache_dir=str(tmp_path / "cache")))
        (source,) = data.sources("train")
        numbers = rng.permutation(len(source)).tolist()
        losses = [documents.DocumentLoss(number, -i, 1, 0) for i, number in enumerate(numbers)]
        monkeypatch.setattr(documents, "document_losses", lambda *_, losses=losses: losses)
        experiment = SimpleNamespace(data=data, loader=lambda split: SimpleNamespace(parts={}))
        run = SimpleNamespace(experiment=experiment, put=None)
        target = tmp_path / f"{count}.jsonl"
        found.append(work(lambda run=run, to=str(target): _write_documents(to, run, None, "train")))
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        assert [line["document"] - 1 for line in lines] == numbers
        assert all(source.text(line["document"] - 1) == line["text"] for line in lines)
    assert is_linear(*found), found


def test_questions_with_choices_are_opened(tmp_path, work):
    class Scored:
        data = SimpleNamespace(config=SimpleNamespace(cache_dir=str(tmp_path / "cache")))
        config = SimpleNamespace(experiment="scored")
        continues = False

        def score(self, params, pairs):
            return []

        def row(self, text, choice):
            return None

    found = []
    for count in (FEW, TIMES * FEW):
        name, _ = write("jsonl", tmp_path / str(count), count)
        file = name.removeprefix("jsonl:")
        found.append(work(lambda file=file: MultipleChoice(Scored(), None, "test", file)))
    assert is_linear(*found) and found[1]["places"] == 0, found
