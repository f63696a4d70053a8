"""Safetensors files: those of the library, sharded ones, and those that somebody made to do harm."""

import json
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from transformer.errors import UserError
from transformer.interop.tensors import INDEX, LONGEST_HEADER, WHOLE, Output, open_tensors, write_tensors

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(path, header, data=bytes(24), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def outputs(arrays):
    return [Output(name, x.dtype, x.shape, lambda x=x: x) for name, x in arrays.items()]


@pytest.fixture
def arrays(rng):
    floats = {name: rng.standard_normal((3, 4)).astype(name) for name in ("float32", "float16", "float64")}
    low = rng.standard_normal((2, 5)).astype(ml_dtypes.bfloat16)
    return floats | {"bfloat16": low, "none": np.zeros((0, 3), np.float32), "one": np.array(3, np.int64)}


@pytest.mark.parametrize("most", [1 << 40, 100])
def test_what_is_written_is_read(arrays, tmp_path, most):
    write_tensors(tmp_path, outputs(arrays), most)
    assert (tmp_path / WHOLE).exists() == (most > 100)
    found = open_tensors(tmp_path)
    assert found.keys() == arrays.keys()
    for name, x in arrays.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name].open(), x)


def test_the_library_reads_what_is_written_and_the_reverse(arrays, tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    (tmp_path / "ours").mkdir(), (tmp_path / "theirs").mkdir()
    known = {name: x for name, x in arrays.items() if name != "bfloat16"}
    write_tensors(tmp_path / "ours", outputs(known), 1 << 40)
    for name, x in library.load_file(tmp_path / "ours" / WHOLE).items():
        np.testing.assert_array_equal(x, arrays[name])
    library.save_file(known, tmp_path / "theirs" / WHOLE)
    for name, tensor in open_tensors(tmp_path / "theirs").items():
        np.testing.assert_array_equal(tensor.open(), arrays[name])


@pytest.mark.parametrize(
    ("header", "options", "said"),
    [
        ({}, {"length": 2**63}, "header of 9,223,372,036,854,775,808 bytes"),
        ({}, {"length": LONGEST_HEADER + 1}, "a header of 16,777,217 bytes"),
        ({}, {"length": 1}, "a header of 1 bytes"),
        (b"[1]", {}, "a JSON list"),
        (b"\xff\xfe", {}, "not readable as JSON"),
        (b'{"a":' * 100_000, {}, "nested too deeply"),
        (b'{"a": NaN}', {}, "NaN is not a number"),
        (b'{"a": {}, "a": {}}', {}, "'a' is there twice"),
        ({"a": ENTRY | {"dtype": "F8_E4M3"}}, {}, "a: dtype 'F8_E4M3'"),
        ({"a": ENTRY | {"dtype": ["F32"]}}, {}, "a: dtype"),
        ({"a": ENTRY | {"shape": [2, -3]}}, {}, "a: shape"),
        ({"a": ENTRY | {"shape": [2**61, 2**61]}}, {}, "a: 24 bytes; F32 of shape"),
        ({"a": ENTRY | {"shape": [True, 6]}}, {}, "a: shape"),
        ({"a": ENTRY | {"data_offsets": [0, 25]}}, {}, "a: data_offsets [0, 25]; expected two, up to 24"),
        ({"a": ENTRY | {"data_offsets": [24, 0]}}, {}, "a: data_offsets"),
        ({"a": ENTRY | {"data_offsets": [-24, 0]}}, {}, "a: data_offsets"),
        ({"a": 3}, {}, "a: dtype"),
        ({"a": ENTRY, "b": ENTRY}, {}, "b overlaps another tensor"),
        ({"a": ENTRY | {"data_offsets": [4, 28]}}, {"data": bytes(28)}, "a leaves a gap before it"),
        ({"a": ENTRY}, {"data": bytes(30)}, "6 bytes after the last tensor"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path, header, options, said):
    write(tmp_path / WHOLE, header, **options)
    tracemalloc.start()
    with pytest.raises(UserError) as caught:
        open_tensors(tmp_path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert most < 64e6


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": "../a.safetensors"}, "'../a.safetensors'; expected the name"),
        ({"a": "/etc/passwd"}, "'/etc/passwd'; expected the name"),
        ({"a": "a\n.safetensors"}, "expected the name"),
        ({"a": "gone.safetensors"}, "names gone.safetensors, which is not there"),
        ({"a": ["a.safetensors"]}, "weight_map: expected the name of a file"),
        (["a"], "weight_map: expected the name of a file"),
        ({"a": "a.safetensors", "b": "a.safetensors"}, "it lacks b"),
        ({"b": "a.safetensors"}, "it has a, but model.safetensors.index.json says otherwise"),
    ],
)
def test_a_hostile_index_is_refused(tmp_path, files, said):
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):
        write(place / "a.safetensors", {"a": ENTRY})
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    with pytest.raises(UserError) as caught:
        open_tensors(folder)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_can_run_code_are_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"pytorch_model.bin is not read: such a file can run code"):
        open_tensors(tmp_path)
