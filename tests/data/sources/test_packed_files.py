"""Packed files are read as what was packed; what is not text is refused with the command that converts it."""

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import zipfile

import pytest

from commands.support.texts import lines
from transformer.data.sources import open_source
from transformer.errors import UserError
from transformer.safe_files import replace

TEXT = "a line\nnaïve café\n" * 30


def zipped(data, *more):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, each in enumerate((data, *more)):
            archive.writestr(f"in/{number}.txt", each)
    return out.getvalue()


def archived(data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


PACK = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zip": zipped,
    ".BZ2": bz2.compress,
}


@pytest.fixture
def read(tmp_path):
    def read(name, data, kind="text"):
        (tmp_path / name).write_bytes(data)
        options = {"cache_dir": tmp_path / "cache", "divide": False}
        return "".join(open_source(f"{kind}:{tmp_path / name}", "train", **options).texts())

    return read


@pytest.mark.parametrize("suffix", PACK)
def test_what_is_packed_is_read_as_it_was(suffix, read, tmp_path):
    packed = PACK[suffix](TEXT.encode())
    assert read(f"a.txt{suffix}", packed) == TEXT
    assert "\n".join([*lines(str(tmp_path / f"a.txt{suffix}")), ""]) == TEXT
    record = PACK[suffix](json.dumps({"text": TEXT}).encode())
    assert read(f"a.jsonl{suffix}", record, "jsonl") == TEXT
    for damaged in (packed[: len(packed) // 2], b"no such thing"):
        with pytest.raises(UserError, match=rf"b{suffix}: not a whole \w+ file \(.+\)$"):
            read(f"b{suffix}", damaged)
        with pytest.raises(UserError, match=rf"^--input: .*b{suffix}: not a whole"):
            list(lines(str(tmp_path / f"b{suffix}")))


def test_an_archive_of_several_files_is_refused(read):
    with pytest.raises(UserError, match=r"a\.zip: an archive of 2 files; expected one: unpack it, `unzip "):
        read("a.zip", zipped(b"one", b"two"))


def test_what_this_python_cannot_unpack_is_named_with_the_command(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(UserError, match=r"no module compression\.zstd to read it; unpack it, `unzstd /"):
        read("a.zst", b"x")


REFUSED = {
    "c.tar": (archived(TEXT.encode()), "a tar archive, not UTF-8 text; `tar xf {}`"),
    "c.tar.gz": (gzip.compress(archived(TEXT.encode())), "a tar archive, not UTF-8 text; `tar xf {}`"),
    "c.tgz": (gzip.compress(b"x"), "packed with gzip, not UTF-8 text; `mv {0} {0}.gz`"),
    "a.docx": (zipped(b"x"), "a zip archive"),
    "le.txt": (TEXT.encode("utf-16-le"), "if it is UTF-16LE text, `iconv -f UTF-16LE -t UTF-8 {}"),
    "be.txt": (TEXT.encode("utf-16-be"), "if it is UTF-16BE text, `iconv -f UTF-16BE -t UTF-8 {}"),
    "marked.txt": (TEXT.encode("utf-16"), "UTF-16, not UTF-8 text; `iconv -f UTF-16 -t UTF-8 {}"),
    "32.txt": (TEXT.encode("utf-32"), "UTF-32, not UTF-8 text; `iconv -f UTF-32 -t UTF-8 {}"),
    "odd name.txt": (b"a\0b", "byte 1 is NUL, which text does not have; `tr -d '\\0' < {}"),
    "windows.txt": (
        "é".encode("cp1252"),
        "1: byte 0 is not UTF-8 (unexpected end of data); a text of Windows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", ["text", "tsv", "jsonl", "csv"])
def test_what_is_not_text_is_refused_with_the_command_that_converts_it(kind, name, read, tmp_path):
    data, message = REFUSED[name]
    path = str(tmp_path / name)
    shown = message.format(f"'{path}'" if " " in path else path)
    with pytest.raises(UserError) as caught:
        read(name, data, kind)
    assert shown in str(caught.value) and path in str(caught.value) and "\n" not in str(caught.value)
    if "a text of Windows" not in message:
        with pytest.raises(UserError) as caught:
            list(lines(path))
        assert shown in str(caught.value)


def test_the_command_that_is_named_converts(read, tmp_path):
    with pytest.raises(UserError) as caught:
        read("a b.txt", TEXT.encode("utf-16"))
    assert os.system(str(caught.value).split("`")[1]) == 0
    assert (tmp_path / "a b.txt.utf8").read_text() == TEXT


@pytest.mark.parametrize("document", ["file", "line", "paragraph"])
def test_a_byte_order_mark_is_no_part_of_a_text(document, read, tmp_path):
    texts = ["".join(f"{number}{i} naïve café\n\n" for i in range(30)) for number in range(2)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    options = {"cache_dir": tmp_path / "cache", "document": document}
    for divide in (False, True):
        splits = ("train", "validation", "test") if divide else ("train",)
        sources = [open_source(f"text:{tmp_path}/*.txt", each, divide=divide, **options) for each in splits]
        found = [source[i]["text"] for source in sources for i in range(len(source))]
        assert found == [text for source in sources for text in source.texts()]
        assert sorted("".join(found).split()) == sorted("".join(texts).split())


def test_a_questions_file_may_begin_with_a_byte_order_mark(tmp_path):
    answers = [{"text": "c", "answer_start": 0}]
    paragraph = {"context": "c", "qas": [{"id": "1", "question": "q", "answers": answers}]}
    data = json.dumps({"data": [{"paragraphs": [paragraph]}]}).encode()
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + data)
    options = {"cache_dir": tmp_path / "cache", "divide": False, "field": "question"}
    assert open_source(f"squad:{tmp_path}/a.json", "train", **options).text(0) == "q"


@pytest.mark.parametrize("count", [1, 210])
def test_files_may_have_names_that_are_not_utf8(count, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text("some\n" * 30)
    with open(os.fsencode(folder) + b"/caf\xe9.txt", "wb") as file:
        file.write(b"more\n" * 30)
    options = {"cache_dir": tmp_path / "cache"}
    sources = [
        open_source(f"text:{folder}/*.txt", split, **options) for split in ("train", "validation", "test")
    ]
    assert sum(text.count("more") for source in sources for text in source.texts()) == 30
    replace(tmp_path / "data.json", json.dumps(sources[0].content, ensure_ascii=False))
    assert json.loads((tmp_path / "data.json").read_text()) == sources[0].content
