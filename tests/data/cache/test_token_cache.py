import functools
import os
import platform
import runpy
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.data.documents import TOKENIZERS, Texts, cache_of, tokenizer
from transformer.data.cache import disk_cache, token_cache
from transformer.data.cache.disk_cache import build_once, data_folder
from transformer.data.cache.token_cache import TokenCache
from transformer.data.sources import base, open_source
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization import token_bytes, tokenizers
from transformer.data.tokenization.tokenizer_kinds import TokenizerKind
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_it_holds_every_document(kind, tmp_path):
    texts = ["first é\n", "", "🙂 second\n\nand more", " "]
    cache, made = cache_of(texts, kind, tmp_path)
    assert cache.tokens.dtype == np.uint16
    for i, text in enumerate(texts):
        tokens = cache.tokens[cache.offsets[i] : cache.offsets[i + 1]]
        assert tokens.tolist() == [made.bos_id, *made.encode(text), made.eos_id]
    assert len(cache.tokens) == len(cache.num_bytes) == cache.offsets[-1]
    assert len(cache.offsets) == len(texts) + 1


@pytest.mark.parametrize("batch", [1, 50, 10_000])
@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
def test_documents_in_pieces_are_whole_documents(kind, batch, tmp_path, monkeypatch):
    texts = ["".join(f"line {i} é\n" for i in range(n)) for n in (3, 0, 40, 1, 20)]
    whole, made = cache_of(texts, kind, tmp_path)
    monkeypatch.setattr(base, "PIECE", 30)
    monkeypatch.setattr(token_bytes, "BATCH", batch)
    pieces = TokenCache.of(Texts(texts, identity="pieces"), made, tmp_path)
    assert pieces.folder != whole.folder
    if kind != "bpe":  # whose merges do not reach over the end of a piece
        np.testing.assert_array_equal(pieces.tokens, whole.tokens)
        np.testing.assert_array_equal(pieces.offsets, whole.offsets)
    for i, text in enumerate(texts):
        part = slice(pieces.offsets[i], pieces.offsets[i + 1])
        assert made.decode(pieces.tokens[part]) == text
        assert pieces.num_bytes[part].sum() == len(text.encode())


def test_it_is_made_once(tmp_path, monkeypatch):
    before, made = cache_of(["a", "b"], "bytes", tmp_path)

    def fail(*_):
        raise AssertionError("tokenised again")

    monkeypatch.setattr(token_cache, "_write", fail)
    after, _ = cache_of(["a", "b"], "bytes", tmp_path)
    assert after.folder == before.folder
    with pytest.raises(AssertionError, match="again"):
        TokenCache.of(Texts(["a", "b"], identity="changed"), made, tmp_path)
    with pytest.raises(AssertionError, match="again"):
        TokenCache.of(Texts(["a", "b"], identity=repr(["a", "b"])), tokenizer("characters"), tmp_path)


def test_a_token_may_stand_for_much_text(tmp_path):
    spaces = " " * 1000
    cache, _ = cache_of([f"a{spaces}b{spaces}"], "wordpiece", tmp_path)  # which drops spaces
    assert cache.num_bytes.tolist() == [0, 1, 1001, 1000]
    cache, made = cache_of([f"a{spaces}"] * 3, "bpe", tmp_path)  # which has long tokens for them
    assert cache.num_bytes.sum() == 3003
    assert cache.num_bytes.max() == token_bytes.byte_sizes(made).max()


def test_large_vocabularies(tmp_path):
    import tokenizers

    vocabulary = {f"w{i}": i for i in range(70_000)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = Tokenizer(backend)
    cache = TokenCache.of(Texts(["w69999 w1"]), made, tmp_path)
    assert cache.tokens.tolist() == [70_000, 69_999, 1, 70_000]


def test_no_documents(tmp_path):
    with pytest.raises(UserError, match=r"the texts: no text; give more, or data\.validation_source"):
        TokenCache.of(Texts([]), tokenizer("bytes"), tmp_path)
    assert not [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"]


def test_a_failure_leaves_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n" * 9 + b"\xff\n")
    source = open_source(f"text:{path}", "train", divide=False, cache_dir=tmp_path)
    with pytest.raises(UserError, match=r"a\.txt:10: byte 45 is not UTF-8"):
        TokenCache.of(source, tokenizer("bytes"), tmp_path)
    assert not [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"]
    path.write_bytes(b"good\n" * 10)
    source = open_source(f"text:{path}", "train", divide=False, cache_dir=tmp_path)
    assert TokenCache.of(source, tokenizer("bytes"), tmp_path).num_bytes.sum() == 50


def test_a_folder_is_built_once_by_many_threads(tmp_path):
    built = []
    barrier = threading.Barrier(8)

    def build(new):
        built.append(new)
        (new / "content").write_text("whole")

    def run():
        barrier.wait()
        assert (build_once(tmp_path / "deep" / "folder", build) / "content").read_text() == "whole"

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_what_a_killed_process_left_is_removed(tmp_path):
    script = """
        import os, sys
        from pathlib import Path
        from transformer.data.cache.disk_cache import build_once

        def build(new):
            (new / "half").write_text("half")
            os._exit(9)

        build_once(Path(sys.argv[1]), build)
    """
    path = tmp_path / "folder"
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    assert subprocess.run(command, check=False).returncode == 9
    assert not path.exists()
    assert len(list(tmp_path.glob("folder.new*"))) == 1
    build_once(path, lambda new: None)
    assert [file.name for file in path.iterdir()] == ["checksums.json"]
    assert not list(tmp_path.glob("folder.new*"))


def test_without_locks_several_hosts_leave_each_other_alone(tmp_path, monkeypatch):
    """One host is slower: it neither loses its unfinished folder to the other nor fails at the end."""
    monkeypatch.setattr(disk_cache, "lock_file", lambda file, wait: True)
    path, days = tmp_path / "kind" / "name", 3 * 24 * 60 * 60

    def slow(new):
        (new / "content").write_text("whole")
        with monkeypatch.context() as patch:
            patch.setattr(platform, "node", lambda: "faster")
            build_once(path, lambda other: (other / "content").write_text("whole"))
        assert (new / "content").exists()

    old = tmp_path / "kind" / "name.new-gone-x"
    old.mkdir(parents=True)
    build_once(path, slow)
    assert old.exists() and [*tmp_path.glob("kind/name.new*")] == [old]
    assert (path / "content").read_text() == "whole"
    os.utime(old, (time.time() - days,) * 2)
    shutil.rmtree(path)
    build_once(path, lambda new: None)
    assert not old.exists()


def test_a_rename_that_fails_is_an_error(tmp_path):
    path = tmp_path / "kind" / "name"

    def build(new):
        (path / "of_someone_else").mkdir(parents=True)

    with pytest.raises(OSError, match="not empty"):
        build_once(path, build)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_dir: .*file/deep cannot be written"):
        build_once(tmp_path / "file" / "deep" / "folder", lambda new: None)


def test_where_data_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "transformer" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "transformer" / "data"
    assert data_folder("~/mine") == tmp_path / "mine"


TOKENISE = """
    import sys
    from pathlib import Path
    from transformer.data.text.packed_text import TextData, TextDataConfig

    config = TextDataConfig(f"text:{sys.argv[1]}/a.txt", vocab_size=300, cache_dir=sys.argv[2])
    data = TextData(config)
    rows = data.rows("train")
    print(data.tokenizer.identity, rows.cache.folder, int(rows.cache.tokens.astype(int).sum()))
"""


@pytest.mark.thorough
def test_two_processes_start_together(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{i} times é\n" for i in range(20_000)))
    command = [sys.executable, "-c", textwrap.dedent(TOKENISE), str(tmp_path), str(tmp_path / "cache")]
    started = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    ended = [process.communicate(timeout=100) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert ended[0][0] == ended[1][0] != ""
    for kind in ("tokens", "tokenizers"):
        assert len([path for path in (tmp_path / "cache" / kind).iterdir() if path.is_dir()]) == 1


KIND = """
import tokenizers
from transformer.data.tokenization.token_names import UNKNOWN
from transformer.data.tokenization.tokenizer_kinds import TokenizerKind

MOST = {most}

def train(texts, vocab_size):
    words = [UNKNOWN, *sorted(set().union(*texts))[:MOST]]
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(words, range(9))), UNKNOWN))
"""


def test_a_kind_of_ones_own_is_trained_again_when_its_file_has_changed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("abcdefg" * 50)
    config = TextDataConfig(f"text:{tmp_path}/a.txt", tokenizer="own", cache_dir=str(tmp_path / "cache"))
    for most in (2, 5, 2):
        (tmp_path / "own.py").write_text(KIND.format(most=most))
        kind = TokenizerKind(runpy.run_path(str(tmp_path / "own.py"))["train"])
        monkeypatch.setitem(tokenizers.TOKENIZERS, "own", kind)
        assert TextData(config).tokenizer.vocab_size == most + 2
    assert len([path for path in (tmp_path / "cache" / "tokenizers").iterdir() if path.is_dir()]) == 2
    assert TokenizerKind(functools.partial(kind.train)).code == ""


MEMORY = """
    import sys, threading, time
    from pathlib import Path
    from transformer.data.text.packed_text import TextData, TextDataConfig

    peak = 0

    def watch():
        global peak
        while True:  # what is the process's own: pages of files are the system's to keep or drop
            status = Path("/proc/self/status").read_text()
            peak = max(peak, int(status.split("RssAnon:")[1].split()[0]) >> 10)
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    for name in sys.argv[1:]:
        config = TextDataConfig(f"text:{name}", tokenizer="bytes", cache_dir=f"{name}.cache")
        TextData(config).rows("train")
        print(peak)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="where Linux tells the use of memory")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    line = "some text of no importance, é\n"
    names = [str(tmp_path / "small"), str(tmp_path / "large")]
    for name, megabytes in zip(names, (8, 60), strict=True):
        Path(name).write_text(line * (megabytes * 2**20 // len(line.encode())))
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), *names]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    small, large = map(int, answer.split())
    assert large - small < 110, answer  # a file's text is held; whoever holds the tokens needs 150 more


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_the_tokens_do_not_give_back_is_counted(tmp_path, kind):
    """Texts are lost where decoding their tokens gives others: here and there, or nowhere."""
    texts = ["def", "Def  x\n", "日本 Ж", "class A: pass", ""]
    made = tokenizer(kind)
    cache = TokenCache.of(Texts(texts), made, tmp_path)
    gone = [text for text in texts if made.decode(made.encode(text)) != text]
    assert cache.lost.tolist() == [len(gone), sum(len(text.encode()) for text in gone)]
    assert bool(gone) == (kind not in ("bytes", "bpe"))


def test_a_document_in_pieces_is_lost_once(tmp_path, monkeypatch):
    monkeypatch.setattr(token_bytes, "BATCH", 6)  # pieces of one document in several batches
    source = Pieces([["Ab", "Cd", "ef", "Gh"], ["ij"], ["Kl", "mn"]])
    made = tokenizer("characters", ["abcdefghijklmn"])
    assert TokenCache.of(source, made, tmp_path).lost.tolist() == [2, 8]


class Pieces(Texts):
    """Documents in the pieces that they are read in."""

    def pieces(self, index):
        yield from self._texts[index]

    def __getitem__(self, index):
        return {"text": "".join(self._texts[index])}
