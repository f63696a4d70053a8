"""That files from elsewhere are only ever data: nothing of them is executed, nothing is written where they
say, and no header takes more memory than its file is large."""

import ast
import gc
import json
import struct
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

from tests import runs
from transformer.data.cache.disk_cache import TAG, build_once, load_array, own_cache
from transformer.data.images.image_sources import open_image
from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.run_folder import RunFolder
from workdir.folder import stored_config

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "torch", "yaml"}
"""Modules that execute what they read; nothing of ours imports one."""

CALLS = {"eval", "exec", "compile", "__import__", "extractall", "system", "popen"}
"""Functions that execute a text, or write where an archive says."""

FILES = [
    path
    for part in ("transformer", "experiments", "workdir", "commands", "configs", "launch.py")
    for path in sorted((runs.ROOT / part).rglob("*.py") if part != "launch.py" else [runs.ROOT / part])
]


def executes(code: str) -> list[str]:
    """What in a program could execute a file's content."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            plain = node.func.id if isinstance(node.func, ast.Name) else ""
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            found += [plain] if plain in CALLS else []
            found += [method] if method in CALLS - {"compile"} else []  # of regular expressions, and JAX's
            found += [f"torch.{method}"] if ast.unparse(node.func) == "torch.load" else []
            for keyword in node.keywords:
                allowed = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in ("allow_pickle", "shell") and not allowed:
                    found.append(keyword.arg)
    return found


def test_nothing_executes_what_it_reads():
    assert len(FILES) > 200
    found = {path.name: each for path in FILES if (each := executes(path.read_text()))}
    assert found == {"twin_peer.py": ["torch"]}  # which trains a model of PyTorch, and loads nothing with it
    hostile = (
        "import pickle",
        "from torch import load",
        "torch.load(f)",
        "eval(x)",
        "np.load(f, allow_pickle=True)",
    )
    for planted in hostile:
        assert executes(planted), planted


def test_a_cache_dir_from_elsewhere_is_used_only_if_prepared_data_are_there(tmp_path, capfd):
    own_cache.cache_clear()
    theirs, run = tmp_path / "theirs", tmp_path / "run"
    run.mkdir()
    values = {"experiment": "language_modeling", "data": {"cache_dir": str(theirs)}}
    (run / "config.json").write_text(json.dumps(values))
    assert stored_config(RunFolder(run))["data"]["cache_dir"] == "" and not theirs.exists()
    said = capfd.readouterr().err
    assert "has no prepared data and is not used; --config.data.cache_dir=" in said and said.count("\n") == 1
    theirs.mkdir()
    (theirs / TAG).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another program\n")
    own_cache.cache_clear()
    assert stored_config(RunFolder(run))["data"]["cache_dir"] == ""
    (theirs / TAG).unlink()
    build_once(theirs / "kind" / "name", lambda new: None)  # as training with this key does
    own_cache.cache_clear()
    assert stored_config(RunFolder(run))["data"]["cache_dir"] == str(theirs)


def npy(header: str, content: bytes = b"") -> bytes:
    """A .npy file with any header."""
    padded = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + content


HEADERS = {
    "shape": npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,)}", b"x" * 64),
    "overflow": npy("{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 16)}"),
    "negative": npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-5,)}", b"x" * 64),
    "code": npy("{'descr': __import__('os').system('touch planted'), 'shape': (1,)}"),
    "pickle": npy(
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\nsystem\n(S'touch planted'\ntR."
    ),
    "no array": b"PK\x03\x04" + b"\0" * 100,
    "nothing": b"",
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_arrays(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.npy").write_bytes(HEADERS[name])
    with pytest.raises(UserError, match=r"x\.npy: not a whole array \(.*\); delete its folder$"):
        load_array(tmp_path / "x.npy")
    assert not (tmp_path / "planted").exists()


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that says it has this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


BOMB = zlib.compress(bytes(100 << 20), 9)
IMAGES = {
    "60,000 x 60,000": png(60_000, 60_000),
    "12,000 x 12,000": png(12_000, 12_000),
    "text of 100 MB": png(8, 8, (b"zTXt", b"Comment\0\0" + BOMB)),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(planted) (w) file\n",
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name, tmp_path):
    (tmp_path / "x.png").write_bytes(IMAGES[name])
    with pytest.raises(UserError, match=r"x\.png: it ") as caught:
        open_image(tmp_path / "x.png")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "1" * 5000 + "}", b"\xff{", "{", ""])
def test_json(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


class Garbage:
    """In a cycle of its own, so that the collector finds it; its finalizer needs 400 frames of Python."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        self.down(400)

    def down(self, steps):
        return self.down(steps - 1) if steps else self


def test_nothing_is_collected_where_nested_json_ends():
    """A finalizer that the collector ran there would fail, with a message about a file that no one reads."""
    failed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda given: failed.append(given.object))
        thresholds = gc.get_threshold()
        gc.collect(0)  # so that the count starts here
        try:
            garbage = [Garbage() for _ in range(9)]
            gc.set_threshold(700, 1, 1)
            del garbage
            with pytest.raises(ValueError, match="nested too deeply"):
                parse_json("[" * 100_000)
        finally:
            gc.set_threshold(*thresholds)
    assert Garbage.__del__ not in failed and gc.isenabled()  # that of other tests may fail too


LIMITED = """
    import resource, sys
    from pathlib import Path
    from transformer.data.cache.disk_cache import load_array, map_arrays
    from transformer.data.images.image_sources import open_image
    from transformer.data.tokenization.tokenizers import Tokenizer
    from transformer.errors import UserError

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
    for path in sorted(Path(sys.argv[1]).iterdir()):
        read = {".npy": load_array, ".png": open_image, ".json": Tokenizer.load}.get(path.suffix, map_arrays)
        try:
            read(path)
            print(path.name, "read")
        except UserError as error:
            assert chr(10) not in str(error)
            print(path.name, "refused")
"""


def test_memory_stays_bounded(tmp_path):
    """Within 512 MB above what the library itself takes."""
    for name, content in HEADERS.items():
        (tmp_path / f"{name}.npy").write_bytes(content)
    for name, content in IMAGES.items():
        (tmp_path / f"{name}.png").write_bytes(content)
    (tmp_path / "deep.json").write_text("[" * 1_000_000)
    (tmp_path / "long.json").write_text('{"version": "1.0", "model": ' + "9" * 1_000_000 + "}")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tokens.int64").write_bytes(b"12345")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path)],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == len(HEADERS) + len(IMAGES) + 3 and "read" not in done.stdout


def test_an_array_is_what_was_saved(tmp_path, rng):
    values = rng.integers(0, 9, (5, 3))
    np.save(tmp_path / "x.npy", values)
    np.testing.assert_array_equal(load_array(tmp_path / "x.npy"), values)
