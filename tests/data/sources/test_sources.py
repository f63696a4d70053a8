import gzip
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from transformer.data.sources import SOURCES, base, files, open_source
from transformer.data.sources.base import SPLITS
from transformer.errors import UserError

PROSE = "".join(f"line {i}: naïve {i * i} 日本\n" + "\n" * (i % 5 == 0) for i in range(400))


@pytest.fixture
def opened(tmp_path):
    def opened(name, split="train", **options):
        return open_source(name, split, cache_dir=tmp_path / "cache", **options)

    return opened


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def failure(opened, name, *arguments, **options):
    """The one line that opening and reading this ends in."""
    with pytest.raises(UserError) as caught:
        for _ in opened(name, *arguments, **options).texts():
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("document", ["file", "line", "paragraph"])
@pytest.mark.parametrize("names", [("a.txt",), ("a.txt.gz",), ("a.txt", "b.txt.gz", "c.txt")])
def test_documents_joined_are_the_text_again(names, document, opened, tmp_path):
    for number, name in enumerate(names):
        write(tmp_path / name, PROSE[number:])
    whole = "".join(PROSE[number:] for number in range(len(names)))
    name = f"text:{tmp_path}/*.txt*"
    by = [] if document == "file" else ["place"]
    splits = {split: opened(name, split, document=document, split_by=by) for split in SPLITS}
    joined = {split: "".join(source.texts()) for split, source in splits.items()}
    assert "".join(joined.values()) == whole
    for split, (low, high) in SPLITS.items():
        assert len(joined[split].encode()) == pytest.approx((high - low) * len(whole.encode()), abs=60)
        assert joined[split].endswith("\n")
    for source in splits.values():
        assert [source[i]["text"] for i in range(len(source))] == [
            "".join(source.pieces(i)) for i in range(len(source))
        ]
    assert "".join(opened(name, "test", document=document, divide=False).texts()) == whole


def test_what_a_document_is(opened, tmp_path):
    path = write(tmp_path / "a.txt", "a\nb\n\n\nc\r\n\r\nd\n \ne")

    def documents(document):
        source = opened(f"text:{path}", document=document, divide=False)
        return [source[i]["text"] for i in range(len(source))]

    assert documents("file") == ["a\nb\n\n\nc\r\n\r\nd\n \ne"]
    assert documents("line") == ["a\n", "b\n", "\n", "\n", "c\r\n", "\r\n", "d\n", " \n", "e"]
    assert documents("paragraph") == ["a\nb\n\n\n", "c\r\n\r\n", "d\n \n", "e"]


def test_many_files_are_divided_by_their_names(opened, tmp_path):
    for number in range(files.MIN_HASHED_RECORDS):
        write(tmp_path / "in" / f"{number:03}.txt", f"text {number}\n")
    documents = {split: list(opened(f"text:{tmp_path}/in/*.txt", split).texts()) for split in SPLITS}
    found = [text for split in SPLITS for text in documents[split]]
    assert sorted(found) == sorted(f"text {number}\n" for number in range(files.MIN_HASHED_RECORDS))
    assert all(documents.values())
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    write(tmp_path / "elsewhere" / "new.txt", "new\n")
    for split, before in documents.items():
        after = list(opened(f"text:{tmp_path}/elsewhere/*.txt", split).texts())
        assert [text for text in after if text != "new\n"] == before


@pytest.mark.parametrize(
    "record", ["text", None, {}, {"txt": "a"}, {"text": 5}, {"text": None}, {"text": ["a"]}]
)
def test_a_record_without_a_text_is_named(opened, monkeypatch, record):
    class Own(base.Source):
        def __init__(self, argument, split, options):
            self.name = self.identity = f"own:{argument}"

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"text": "a"} if index == 0 else record

    monkeypatch.setitem(SOURCES, "own", Own)
    assert list(opened("own:x").pieces(0)) == ["a"]
    assert failure(opened, "own:x") == f"own:x: record 2: no text in 'text': {record!r}"


def test_long_documents_come_in_pieces(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 100)
    monkeypatch.setattr(base, "PIECE", 100)
    endless = "日本語🙂" * 300
    for text in (PROSE, endless, PROSE + endless):
        path = write(tmp_path / "a.txt", text)
        pieces = list(opened(f"text:{path}", divide=False).pieces(0))
        assert "".join(pieces) == text
        assert max(len(piece.encode()) for piece in pieces) < 210
        write(tmp_path / "a.jsonl", json.dumps({"text": text}) + "\n" + json.dumps({"text": ""}))
        source = opened(f"jsonl:{tmp_path}/a.jsonl", divide=False)
        pieces = list(source.pieces(0))
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= 200
        assert list(source.pieces(1)) == [""]
    pieces = list(opened(f"text:{write(tmp_path / 'b.txt', PROSE)}", divide=False).pieces(0))
    assert all(piece.endswith("\n") for piece in pieces)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("count", [30, 1000])
def test_lines_of_json(count, suffix, opened, tmp_path):
    records = [{"id": i, "body": f"é {i // 2}\n"} for i in range(count)]
    lines = [json.dumps(record) + "\n" * (1 + record["id"] % 3) for record in records]
    path = write(tmp_path / f"a.jsonl{suffix}", "".join(lines).rstrip())
    sources = {split: opened(f"jsonl:{path}", split, field="body") for split in SPLITS}
    found = [source[i] for source in sources.values() for i in range(len(source))]
    assert sorted(found, key=lambda record: record["id"]) == records
    for split, (low, high) in SPLITS.items():
        assert len(sources[split]) == pytest.approx((high - low) * count, abs=1 + count * 0.03)
    assert next(sources["train"].texts()) == sources["train"][0]["body"]


def test_repeated_lines_stay_together(opened, tmp_path):
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": str(i % 300)}) + "\n" for i in range(900)))
    splits = [set(opened(f"jsonl:{path}", split).texts()) for split in SPLITS]
    assert sum(map(len, splits)) == 300


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_identity_changes_when_a_record_does(kind, opened, tmp_path):
    line = '{"text": "a"}\n'
    path = write(tmp_path / "a", line * 3)

    def identity(split="train", **options):
        return opened(f"{kind}:{tmp_path}/[ab]", split, **options).identity

    seen = [identity(), identity("test"), identity(divide=False)]
    seen.append(identity(document="line") if kind == "text" else identity(field="x"))
    assert identity() == seen[0]
    path.write_text(line * 4)
    seen.append(identity())
    os.utime(path, ns=(1, 1))
    seen.append(identity())
    write(tmp_path / "b", line)
    seen.append(identity())
    assert len(set(seen)) == len(seen)


def test_an_archive_that_changed_is_unpacked_again(opened, tmp_path):
    path = write(tmp_path / "a.txt.gz", "old\n")
    assert list(opened(f"text:{path}", divide=False).texts()) == ["old\n"]
    write(path, "newer\n")
    assert list(opened(f"text:{path}", divide=False).texts()) == ["newer\n"]


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_files_that_are_not_there(kind, opened, tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "empty", "")
    assert "no such file" in failure(opened, f"{kind}:{tmp_path}/none*")
    assert f"is a folder; name its files, {kind}:{tmp_path}/folder/*" in failure(
        opened, f"{kind}:{tmp_path}/folder/"
    )
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder; a pipe" in failure(opened, f"{kind}:{tmp_path}/pipe")
    assert "empty" in failure(opened, f"{kind}:{tmp_path}/empty")
    assert "no such file" in failure(opened, f"{kind}:")
    write(tmp_path / "broken.gz", b"x")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(PROSE.encode())[:-20])
    assert "broken.gz: not a whole gzip file" in failure(opened, f"{kind}:{tmp_path}/broken.gz")
    (tmp_path / "broken.gz").write_bytes(b"plain")
    assert "broken.gz: not a whole gzip file" in failure(opened, f"{kind}:{tmp_path}/broken.gz")
    write(tmp_path / "empty.gz", "")
    assert "no text" in failure(opened, f"{kind}:{tmp_path}/empty.gz")


def test_a_path_that_exists_is_that_path(opened, tmp_path):
    """Also with what would be a pattern: brackets, stars, commas, in names of files and folders."""
    folder = tmp_path / "my [en], all*"
    write(folder / "data [v2].txt", "the file that was named\n")
    for other in ("data 2.txt", "data v.txt"):
        write(folder / other, "another file\n")
    write(folder / "a, [b].de", "eins\n")

    def read(name, **options):
        source = opened(name, divide=False, **options)
        return [source.text(i) for i in range(len(source))]

    assert read(f"text:{folder}/data [v2].txt") == ["the file that was named\n"]
    assert read(f"text:{folder}/data [2v].txt") == ["another file\n"] * 2  # a pattern in such a folder
    assert len(read(f"text:{folder}/*.txt")) == len(read(f"text:{tmp_path}/**/data*.txt")) == 3
    aligned = f"aligned:{folder}/data [v2].txt,{folder}/a, [b].de"
    assert read(aligned, field="source") == ["the file that was named"]
    assert read(aligned, field="target") == ["eins"]
    with pytest.raises(UserError, match=r"expected two files, aligned:SOURCE,TARGET$"):
        opened(f"aligned:{folder}/data [v2].txt,{folder}/no.de", field="source")
    with pytest.raises(UserError, match=r"is a folder; name its files, text:.*all\*/\*$"):
        opened(f"text:{folder}")


def test_text_that_is_not_utf8(opened, tmp_path):
    path = write(tmp_path / "a.txt", b"a\nb\n" + "é".encode("latin-1") + b"\n")
    assert f"{path}:3: byte 4 is not UTF-8" in failure(opened, f"text:{path}", divide=False)
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n\n{"text": "\xff"}\n')
    assert f"{path}:3: byte 25 is not UTF-8" in failure(opened, f"jsonl:{path}", divide=False)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON (Expecting property name"),
        ("[1]", "list; expected a JSON object"),
        ('{"body": 1, "id": 2}', "no field 'text'; fields there: body, id"),
        ('{"text": 1}', "int, not text, in 'text'"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_line_that_is_no_record(line, problem, opened, tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n' + line + "\n")
    assert f"{path}:3: {problem}" in failure(opened, f"jsonl:{path}", divide=False)


def test_too_little_for_a_split(opened, tmp_path):
    path = write(tmp_path / "a.txt", "one line\n")
    assert list(opened(f"text:{path}").texts()) == ["one line\n"]
    assert "(validation): no text; " in failure(opened, f"text:{path}", "validation")


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("texts:a", {}, "'texts:a': unknown source; did you mean 'text:a'?"),
        ("xls:a", {}, f"'xls:a': unknown source; expected one of {', '.join(SOURCES)}, then :PATH"),
        ("stdlib", {"split": "dev"}, "no split 'dev'; splits there: train, validation, test"),
        ("text:a", {"document": "page"}, "document 'page'; expected one of file, line, paragraph"),
        ("text:a", {"fields": ("text", "label")}, "plain text has no fields, and 'text', 'label' are"),
        ("stdlib", {"field": "body"}, "no field 'body'; fields there: text, path"),
        ("stdlib:x", {}, "stdlib takes no argument"),
        ("tfds:imdb_reviews", {"field": "body"}, "no field 'body'; fields there: text, label"),
        ("tfds:tiny_shakspeare", {}, "no such data set; did you mean tiny_shakespeare"),
        ("tfds:wikipedia/20230601.en", {}, "needs tensorflow: `pip install tensorflow`"),
        ("tfds:xqzwv", {}, "no such data set; see "),
        ("tfds:a b", {}, "tfds:a b: ValueError: Parsing builder name string"),
    ],
)
def test_a_request_that_cannot_be_met(name, options, expected, opened):
    assert expected in failure(opened, name, **options)


BUILDER = """
    import tensorflow_datasets as tfds

    class {name}(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {{"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {{split: self._generate_examples(split) for split in {splits}}}

        def _generate_examples(self, split):
            {before}
            for i in range(100):
                yield i, {{"text": f"{{split}} é {{i}}", "label": i % 2}}
"""


def define(name, splits, before="pass"):
    exec(textwrap.dedent(BUILDER.format(name=name, splits=splits, before=before)), {"__name__": name})


def test_any_builder_of_tfds(opened, tmp_path):
    define("WholeText", ["train", "validation", "test"])
    define("TrainText", ["train", "test"])
    define("OnlyText", ["train"])
    define("HeldText", ["test"])
    for split in SPLITS:
        source = opened("tfds:whole_text", split)
        assert sorted(source.texts()) == sorted(f"{split} é {i}" for i in range(100))
        assert set(source[0]) == {"text", "label"}
    for name, test in [("train_text", "test"), ("only_text", "train")]:
        found = {split: set(opened(f"tfds:{name}", split).texts()) for split in SPLITS}
        assert set.union(*(found[split] for split in SPLITS if split != "test" or test == "train")) == {
            f"train é {i}" for i in range(100)
        }
        assert len(found["validation"]) == 5
        assert len(found["test"]) == (5 if test == "train" else 100)
        assert sum(map(len, found.values())) == (100 if test == "train" else 200)
    assert "no split 'train'; splits there: test" in failure(opened, "tfds:held_text")
    identities = {
        opened(f"tfds:{name}", split).identity for name in ("whole_text", "only_text") for split in SPLITS
    }
    assert len(identities) == 6


def test_a_builder_that_cannot_prepare(opened):
    define("NeedsText", ["train"], "import tensorflow_that_is_not_here")
    define("FailsText", ["train"], "raise OSError('no network\\nat all')")
    assert "needs tensorflow_that_is_not_here: `pip install" in failure(opened, "tfds:needs_text")
    assert "fails_text: cannot be prepared; OSError: no network" in failure(opened, "tfds:fails_text")


def test_the_standard_library(opened, tmp_path):
    sources = {split: opened("stdlib", split) for split in SPLITS}
    records = {split: [source[i] for i in range(len(source))] for split, source in sources.items()}
    paths = {record["path"] for split in SPLITS for record in records[split]}
    assert len(paths) == sum(map(len, records.values())) > 400
    assert {"os.py", "json/decoder.py"} <= paths
    folders = {folder for path in paths for folder in path.split("/")[:-1]}
    assert "unittest" in folders
    assert not folders & {"test", "tests", "idle_test", "site-packages", "lib2to3", "__pycache__"}
    assert not [path for path in paths if "_sysconfigdata" in path]
    sizes = {split: sum(len(record["text"].encode()) for record in records[split]) for split in SPLITS}
    assert sum(sizes.values()) > 8e6
    for split, share in (("train", 0.9), ("validation", 0.05), ("test", 0.05)):
        assert sizes[split] / sum(sizes.values()) == pytest.approx(share, abs=0.015)
    import json as module

    (decoder,) = (r for split in SPLITS for r in records[split] if r["path"] == "json/__init__.py")
    assert decoder["text"].encode() == Path(module.__file__).read_bytes()


@pytest.mark.parametrize("split", SPLITS)
def test_the_standard_library_is_in_the_order_of_tfds(opened, split):
    """With which it was once prepared: runs from then continue with the same rows."""
    from tensorflow_datasets.core.hashing import Hasher

    source = opened("stdlib", split)
    paths = [source[i]["path"] for i in range(len(source))]
    assert paths == sorted(paths, key=Hasher(split).hash_key)


READ = """
    import sys
    from transformer.data.sources import open_source
    source = open_source("stdlib", "validation", cache_dir=sys.argv[1])
    assert "".join(source.texts())
    assert "tensorflow_datasets" not in sys.modules
"""


def test_the_standard_library_needs_no_preparation(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(READ), str(tmp_path)]
    subprocess.run(command, check=True)
    assert list(tmp_path.iterdir()) == []
