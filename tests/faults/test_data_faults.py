"""That faults of the data are a line that names the file, or are made good."""

import contextlib
import errno
import mmap
import os
import random
import time

import numpy as np
import pytest

import launch
from tests import runs
from tests.data.documents import Texts
from tests.data.sources.test_sources import define
from tests.faults.damaged_data import DAMAGES, KINDS, TEXTS, damaged
from transformer.data.cache import content_digests
from transformer.data.cache.disk_cache import CHECKSUMS, build_once
from transformer.data.cache.token_cache import TokenCache
from transformer.data.images.image_sources import ImageFolder
from transformer.data.loader import DataLoader, Rows
from transformer.data.sources import open_source
from transformer.data.sources.options import Options
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

BYTES = Tokenizer.train("bytes")


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused_in_a_line(kind, rng):
    drawn = random.Random(int(rng.integers(1 << 30)))
    found = {damage: damaged(kind, damage, 8, drawn) for damage in DAMAGES}
    for damage, counts in found.items():
        assert counts.keys() <= {"line", "read", "made again"}, (damage, counts)
    checked = ("text, gzip", "parquet", "hf", "squad", "tokenizer.json", "token cache")
    assert not (kind in checked and "read" in found["cut"])
    if kind == "token cache":  # by sizes; what keeps them, `transformer.data.cache.verify` finds
        assert found["cut"] == found["delete"] == {"made again": 8}
    assert "read" not in found["delete"] or kind == "folder"


def test_a_cache_cut_in_half_is_made_again(tmp_path, capfd):
    """At an even length, at which all of its numbers are whole."""
    before = TokenCache.of(Texts(TEXTS), BYTES, tmp_path)
    tokens, file = before.tokens.copy(), before.folder / "tokens.uint16"
    for _ in range(2):
        os.truncate(file, len(tokens) // 4 * 4)
        after = TokenCache.of(Texts(TEXTS), BYTES, tmp_path)
        np.testing.assert_array_equal(after.tokens, tokens)
    assert capfd.readouterr().err.count("; it is made again\n") == 2
    os.truncate(file, len(tokens) // 4 * 4)
    (before.folder / CHECKSUMS).unlink()  # as in caches from before sizes were kept
    np.testing.assert_array_equal(TokenCache.of(Texts(TEXTS), BYTES, tmp_path).tokens, tokens)
    assert f"{CHECKSUMS} is missing; it is made again\n" in capfd.readouterr().err


def test_prepared_data_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.readlink(f"/proc/self/fd/{number}")))
    build_once(tmp_path / "data" / "kind" / "name", lambda new: (new / "x").write_text("x"))
    assert [os.path.basename(name) for name in flushed] == ["x", CHECKSUMS]


def line(capfd, source: str, folder, *more: str) -> str:
    """The one line in which training on a source ends, which writes nothing."""
    capfd.readouterr()
    assert launch.main(runs.tiny(source, folder / "run", *more)) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1 and not list((folder / "run").glob("*"))
    return error


@pytest.mark.usefixtures("in_root")
def test_what_cannot_be_read_is_named(tmp_path, capfd, monkeypatch):
    good = tmp_path / "good.txt"
    good.write_text("\n".join(TEXTS), encoding="utf-8")
    os.symlink(tmp_path / "moved" / "away", tmp_path / "link.txt")
    assert f"link.txt is a link to {tmp_path}/moved/away, which is not there" in line(
        capfd, f"text:{tmp_path}/*.txt", tmp_path
    )
    (tmp_path / "bad.txt").write_bytes("\n".join(TEXTS[:3]).encode() + b"\n" + b"caf\xe9 " * 900)
    said = line(capfd, f"text:{tmp_path}/bad.txt", tmp_path)
    assert "bad.txt:4: byte " in said and "is not UTF-8" in said
    (tmp_path / "few.txt").write_text("one line\n")
    assert "few.txt (validation): no text; give more, or data.validation_source" in line(
        capfd, f"text:{tmp_path}/few.txt", tmp_path
    )
    refuse = lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        assert "good.txt: cannot be read (Input/output error)" in line(capfd, f"text:{good}", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: "good" not in str(path))
        assert "good.txt cannot be read (permission denied)" in line(capfd, f"text:{good}", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(content_digests, "file_digest", refuse)
        assert "good.txt: cannot be read (Input/output error)" in line(capfd, f"text:{good}", tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("\n".join(TEXTS) * 20, encoding="utf-8")
    source = open_source(f"text:{file}", "train", cache_dir=tmp_path, divide=False, document="line")
    assert source.text(0) + source.text(1) == f"{TEXTS[0]}\n{TEXTS[1]}\n"
    last = len(source) - 1
    os.truncate(file, 3)  # beyond the end of a memory map a process ends with SIGBUS
    with pytest.raises(UserError, match=r"a\.txt: it has become shorter than .* bytes while it was read"):
        source.text(last)


def test_null_bytes_and_other_control_characters_are_text(tmp_path):
    text = "".join(map(chr, range(128))) + "\0\0 é"
    cache = TokenCache.of(Texts([text]), BYTES, tmp_path)
    assert BYTES.decode(cache.tokens[1:-1]) == text
    made = Tokenizer.train("bpe", [text] * 5, 300)
    assert made.decode(made.encode(text)) == text


def test_fewer_rows_than_a_batch_come_equally_often():
    class Numbers(Rows):
        def __len__(self):
            return 3

        def batch(self, rows):
            return {"row": rows}

    batches = DataLoader(Numbers(), 8, shuffle=True, repeat=True)
    drawn = np.concatenate([batches.batch_at(step)["row"] for step in range(3)])
    assert np.bincount(drawn).tolist() == [8, 8, 8]


@pytest.mark.parametrize("error", [MemoryError, SystemExit, OSError])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_death_of_a_worker_is_noticed_at_once(error, workers):
    class Deadly(Rows):
        def __len__(self):
            return 100

        def batch(self, rows):
            if 40 in rows:
                raise error("gone")
            return {"row": rows}

    batches, began = DataLoader(Deadly(), 4, workers=workers).iterate(0), time.monotonic()
    with pytest.raises(error, match="gone"):
        for number, _ in enumerate(batches):
            assert number < 10
    assert time.monotonic() - began < 5


def test_images_that_are_none(tmp_path):
    from PIL import Image

    (tmp_path / "a" / "d.png").mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / "pipe.png")  # to open it would wait for a writer
    Image.new("L", (4, 4)).save(tmp_path / "a" / "x.png")
    found = ImageFolder(str(tmp_path), "train", Options(tmp_path / "cache"), "label")
    assert [file.name for file in found.files] == ["x.png"]


def test_a_damaged_array_record(tmp_path):
    define("DamagedText", ["train", "validation", "test"])
    source = open_source("tfds:damaged_text", "train", cache_dir=tmp_path)
    assert len(source) == 100 and source.text(3)
    (file,) = tmp_path.rglob("*-train.array_record*")
    content = bytearray(file.read_bytes())
    for change in (lambda: content[: len(content) // 2], lambda: bytes(len(content)), lambda: b""):
        file.write_bytes(change())
        with contextlib.suppress(UserError):
            source = open_source("tfds:damaged_text", "train", cache_dir=tmp_path)
            for index in range(len(source)):
                source.text(index)
            raise AssertionError("read")


@pytest.mark.thorough
def test_without_a_network_tfds_gives_up_within_seconds(tmp_path):
    define("FarText", "dl_manager.download('http://nowhere.invalid/x')")
    began = time.monotonic()
    with pytest.raises(UserError, match=r"^tfds:far_text: cannot be prepared; .*nowhere\.invalid") as caught:
        list(open_source("tfds:far_text", "train", cache_dir=tmp_path).texts())
    assert "\n" not in str(caught.value) and time.monotonic() - began < 60
