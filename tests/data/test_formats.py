"""Each row of the table of formats in docs/data.md is read as it says; others name what converts them."""

import base64
import csv
import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.images.images import ImageData, ImageDataConfig
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources import open_source
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
COUNT = 30
PAIRS = [{"translation": {"en": f"one {i}", "de": f"eins {i}"}} for i in range(COUNT)]
ALPACA = [
    {"instruction": f"Say {i}", "input": "" if i % 2 else "now", "output": f"said {i}"} for i in range(COUNT)
]


def array(path, records):
    path.write_text(json.dumps(records, indent=2), encoding="utf-8-sig")


def lines(path, records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def parquet(path, columns, **options):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=7)


def picture(i):
    from PIL import Image

    out = io.BytesIO()
    Image.new("L", (9, 8), i).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": f"{i}.png"}


def quoted(path):
    with open(path, "w", newline="") as file:
        table = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        table.writerow(("text", "label"))
        table.writerows((f'He said "{i}",\tand\nleft', "ab"[i % 2]) for i in range(COUNT))


def questions(path):
    asked = [{"id": str(i), "question": f"who {i}?"} for i in range(COUNT)]
    paragraphs = [{"context": f"someone {i}", "qas": [each]} for i, each in enumerate(asked)]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


PREPARE = """
    import sys
    import tensorflow_datasets as tfds

    class SomeText(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples() for split in ("train", "validation", "test")}

        def _generate_examples(self):
            for i in range(30):
                yield i, {"text": f"text {i}"}

    tfds.builder("some_text", data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


def prepared(path):
    subprocess.run([sys.executable, "-c", textwrap.dedent(PREPARE), str(path.parent)], check=True)
    (path.parent / "some_text" / "1.0.0").rename(path)


def messages(data):
    return [data.source("train").conversations(i)[0] for i in range(2)]


def talk(*asked):
    return [
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"said {i}"}]
        for i, text in asked
    ]


WEB = [
    {"conversations": [{"from": "human", "value": f"Say {i}"}, {"from": "gpt", "value": f"said {i}"}]}
    for i in range(COUNT)
]
PARTS = [
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": str(i)}]},
            {"role": "assistant", "content": f"said {i}"},
        ]
    }
    for i in range(COUNT)
]
COMPLETIONS = [
    {"prompt": f"Say {i}", "completion": [{"role": "assistant", "content": f"said {i}"}]}
    for i in range(COUNT)
]
PLAIN = [(0, "Say 0"), (1, "Say 1")]

ROWS = {
    "a JSON array": (
        lambda path: array(path, [{"text": f"t{i}", "label": i % 2} for i in range(COUNT)]),
        lambda data: sorted(data.texts("train"))[:2],
        [(("t0",), "0"), (("t1",), "1")],
    ),
    "WMT and OPUS": (
        lambda path: lines(path, PAIRS),
        lambda data: next(data.texts("train")),
        ("one 0", "eins 0"),
    ),
    "the same as Parquet": (
        lambda path: parquet(path, {"translation": [each["translation"] for each in PAIRS]}),
        lambda data: next(data.texts("train")),
        ("one 0", "eins 0"),
    ),
    "ShareGPT": (lambda path: lines(path, WEB), messages, talk(*PLAIN)),
    "Alpaca,": (lambda path: array(path, ALPACA), messages, talk((0, "Say 0\nnow"), (1, "Say 1"))),
    "Alpaca, for": (
        lambda path: lines(path, ALPACA),
        lambda data: next(data.texts("train")),
        ("Say 0\nnow", "said 0"),
    ),
    '`{"prompt"': (lambda path: lines(path, COMPLETIONS), messages, talk(*PLAIN)),
    "contents in parts": (lambda path: lines(path, PARTS), messages, talk(*PLAIN)),
    "images in a column": (
        lambda path: parquet(
            path, {"img": [picture(i) for i in range(40)], "fine": [i % 2 for i in range(40)]}
        ),
        lambda data: (len(data.rows("train")), data.labels),
        (32, ["0", "1"]),
    ),
    "questions of SQuAD": (questions, lambda data: next(data.inputs("train")), "who 0?\tsomeone 0"),
    "a folder that TFDS": (
        prepared,
        lambda data: sorted(data.source("validation").texts())[0],
        "text 0",
    ),
    "a table of pandas": (
        quoted,
        lambda data: next(data.texts("train")),
        (('He said "0",\tand\nleft',), "a"),
    ),
}

CONFIGS = {
    "classification": (LabelledData, LabelledDataConfig),
    "translation": (PairData, PairDataConfig),
    "chat": (ChatData, ChatDataConfig),
    "vision": (ImageData, ImageDataConfig),
    "question answering": (SpanData, SpanDataConfig),
    "language model": (TextData, TextDataConfig),
}


def table():
    found = re.findall(r"^\| (.+?) \| ([a-z ]+) \| `(source=.+?)` \|$", DOCS.read_text(), re.MULTILINE)
    rows = {}
    for what, config, keys in found:
        (name,) = [max((name for name in ROWS if what.startswith(name)), key=len, default=what)]
        rows[name] = config, dict(key.split("=", 1) for key in keys.split(" "))
    return rows


def test_the_table_has_the_formats_that_are_tried():
    assert table().keys() == ROWS.keys()


SLOW = {"a folder that TFDS": pytest.mark.thorough}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in ROWS])
def test_a_format_is_read_with_the_keys_of_its_row(name, tmp_path):
    make, read, expected = ROWS[name]
    config, keys = table()[name]
    make(path := tmp_path / "file [1], a")
    keys = {key: value.replace("FILE", str(path)) for key, value in keys.items()}
    data, options = CONFIGS[config]
    of_text = {} if config == "vision" else {"tokenizer": "bytes"}
    assert read(data(options(cache_dir=str(tmp_path / "cache"), **of_text, **keys))) == expected


RANKS = b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cl100k_base.tiktoken", RANKS, "a file of tiktoken.*convert_tiktoken_to_fast\\('cl100k_base', "),
        ("tokenizer.model", RANKS, "a file of tiktoken.*convert_tiktoken_to_fast\\('NAME', "),
        ("tokenizer.model", b"\n\x0e\n\x05<unk>", "a SentencePiece model; convert it: .*read_sentencepiece"),
        ("vocab.txt", b"[PAD]\r\n[UNK]\r\n", "a vocabulary of WordPiece; convert it: .*word_piece"),
        ("tokenizer.json", b"{}", "not a tokenizer.json"),
    ],
)
def test_another_file_of_a_tokenizer_is_named_with_the_command_that_converts_it(
    name, content, message, tmp_path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"^data\.tokenizer: .*{re.escape(name)}: {message}"):
        TextData(TextDataConfig(tokenizer=str(tmp_path / name)))


@pytest.mark.thorough
def test_the_command_that_is_named_for_a_vocabulary_converts_it(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path / "vocab.txt")
    command = str(caught.value).split("`")[1].replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, cwd=DOCS.parents[1])
    assert Tokenizer.load(tmp_path / "vocab.txt.json").encode("Hello world") == [5, 6]


def test_questions_without_answers_are_not_trained_on(tmp_path):
    questions(path := tmp_path / "a.json")
    data = SpanData(
        SpanDataConfig(source=f"squad:{path}", cache_dir=str(tmp_path / "cache"), tokenizer="bytes")
    )
    with pytest.raises(UserError, match="no field 'answers'; expected"):
        data.rows("train")


@pytest.mark.thorough
def test_data_that_tfds_has_prepared_elsewhere_are_read_there(tmp_path, monkeypatch):
    prepared(tmp_path / "1.0.0")
    (tmp_path / "some_text").mkdir(exist_ok=True)
    (tmp_path / "1.0.0").rename(tmp_path / "some_text" / "1.0.0")
    exec(textwrap.dedent(PREPARE).rpartition("tfds.builder")[0], {"__name__": "some_text"})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    source = open_source("tfds:some_text", "test", cache_dir=tmp_path / "cache")
    assert sorted(source.texts())[:2] == ["text 0", "text 1"]
    assert not (tmp_path / "cache" / "tfds").exists()
    info = tmp_path / "some_text" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    for name in ("some_text", str(info.parent)):
        with pytest.raises(UserError, match="prepared as tfrecord; convert it, `tfds convert_format --data"):
            open_source(f"tfds:{name}", "test", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"},', r"a\.json: not JSON \(.*\), and it begins as an array does"),
        (
            '{\n  "text": "a"\n}',
            r"a\.json:1: not JSON \(.*\); `jq -c \. FILE` writes an obj",
        ),
        ('[{"text": "a"}, {"text": 5}]', r"a\.json: record 2: int, not text, in 'text'"),
    ],
)
def test_json_that_is_not_of_records_is_refused(content, message, tmp_path):
    (tmp_path / "a.json").write_text(content)
    options = {"divide": False, "cache_dir": tmp_path / "cache"}
    with pytest.raises(UserError, match=message):
        list(open_source(f"jsonl:{tmp_path}/a.json", "train", **options).texts())


def test_a_part_of_a_content_that_is_no_text_is_refused(tmp_path):
    part = {"type": "image_url", "image_url": "https://a/b.png"}
    lines(path := tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": [part]}]}] * COUNT)
    data = ChatData(
        ChatDataConfig(source=f"jsonl:{path}", cache_dir=str(tmp_path / "cache"), tokenizer="bytes")
    )
    with pytest.raises(UserError, match=r"message 1: a part of the content is .*expected parts of type text"):
        messages(data)


def test_a_row_without_the_bytes_of_an_image_is_named(tmp_path):
    columns = {"image": [{"bytes": None, "path": "a.png"}] * 20, "label": [0, 1] * 10}
    parquet(path := tmp_path / "a.parquet", columns)
    with pytest.raises(UserError, match=r"a\.parquet: row \d+: 'image' has only the path of an image; exp"):
        ImageData(ImageDataConfig(source=f"parquet:{path}", cache_dir=str(tmp_path / "cache"))).rows("train")


@pytest.mark.parametrize("mark", ",;\t")
def test_values_of_a_table_are_separated_as_the_first_line_says(mark, tmp_path):
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows([["a,b", "text"], ["x,y;z", 'one\t"two"; three, four']])
    options = {"divide": False, "cache_dir": tmp_path / "cache"}
    source = open_source(f"csv:{tmp_path}/a.csv", "train", **options)
    assert [*source.texts()] == ['one\t"two"; three, four'] and source[0]["a,b"] == "x,y;z"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ('"He said ""hi"""', 'He said "hi"'),
        ('"""Hello"", he said."', '"Hello", he said.'),
        ('"Hello," he said.', '"Hello," he said.'),
        ('"Hello"', '"Hello"'),
        ('"a" and "b"', '"a" and "b"'),
        ('""', '""'),
        ('5"" pipe', '5"" pipe'),
    ],
)
def test_doubled_quotes_of_a_table_are_read_and_others_are_text(column, text, tmp_path):
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{column}\tx\n")
    options = {"divide": False, "cache_dir": tmp_path / "cache", "fields": ("text", "label")}
    assert [*open_source(f"tsv:{tmp_path}/a.tsv", "train", **options).texts()] == [text]
