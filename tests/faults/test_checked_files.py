"""That no bit of prepared data changes unnoticed: small files are made again, large ones are checked where
they are read."""

import io
import json

import numpy as np
import pytest

from tests.data.documents import Texts
from transformer.data.cache import checked_array, disk_cache
from transformer.data.cache.checked_array import DAMAGED, CheckedArray, DamagedBlock
from transformer.data.cache.disk_cache import CHECKSUMS, SIZES, build_once, load_array, map_arrays
from transformer.data.cache.token_cache import TokenCache
from transformer.data.text.packed_text import PackedRows
from transformer.data.tokenization.tokenizers import Tokenizer

BYTES = Tokenizer.train("bytes")
TEXTS = [f"record {i}: naïve {i * i} " + "words " * (i % 5) for i in range(90)]


def flip(file, rng, start=0):
    """One bit of a file, from a byte on."""
    content = bytearray(file.read_bytes())
    content[int(rng.integers(start, len(content)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


@pytest.mark.thorough
def test_of_a_hundred_flipped_bits_none_is_read(tmp_path, rng, capfd):
    """In all files of a cache, that of the checksums too."""
    cache = TokenCache.of(Texts(TEXTS), BYTES, tmp_path)
    names = ("tokens", "num_bytes", "offsets", "lost")
    before = {name: np.array(getattr(cache, name)) for name in names}
    files = sorted(cache.folder.iterdir())
    for number in range(100):
        flip(files[number % len(files)], rng)
        again = TokenCache.of(Texts(TEXTS), BYTES, tmp_path)
        for name in names:
            np.testing.assert_array_equal(getattr(again, name), before[name])
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 100 and all(line.endswith("; it is made again") for line in said)


def _bytes(values):
    """A .npy file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.fixture
def large(monkeypatch):
    """Files of more than 100 bytes count as large, and have blocks of 64."""
    monkeypatch.setattr(disk_cache, "SMALL", 100)
    monkeypatch.setattr(checked_array, "BLOCK", 64)


KEYS = {
    "one": lambda n, rng: int(rng.integers(-n, n)),
    "slice": lambda n, rng: slice(*sorted(rng.integers(0, n, 2).tolist())),
    "every third, from behind": lambda n, rng: slice(None, int(rng.integers(n)), -3),
    "some": lambda n, rng: rng.integers(-n, n, 3),
    "a matrix": lambda n, rng: rng.integers(0, n, (2, 2)),
    "none": lambda n, rng: slice(3, 3),
}


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("row", [(), (5,), (50,)])
def test_what_is_read_of_a_large_file_is_what_was_written(tmp_path, rng, row):
    """Rows in a block, of several blocks, and over their bounds; each read is right, or an error, and right
    where the damage is elsewhere."""
    values = rng.integers(0, 1 << 15, (200, *row), np.int16)
    folder = build_once(tmp_path / "kind" / "name", lambda new: np.save(new / "x.npy", values))
    whole = load_array(folder / "x.npy", lazily=True)
    assert isinstance(whole, CheckedArray) and whole.shape == values.shape and len(whole) == 200
    refused = 0
    for _ in range(20):
        flip(folder / "x.npy", rng, start=128)  # behind the header, and the two blocks that it is in
        now = np.lib.format.open_memmap(folder / "x.npy", mode="r")
        for make in KEYS.values():
            found, key = load_array(folder / "x.npy", lazily=True), make(200, rng)
            try:
                np.testing.assert_array_equal(found[key], values[key])
            except DamagedBlock as error:
                assert "x.npy are not as they were written; the same command makes them again" in str(error)
                start, end = (int(word.replace(",", "")) for word in str(error).split()[2:5:2])
                assert end - start <= 64
                assert (folder / "x.npy").read_bytes()[start:end] != _bytes(values)[start:end]
                refused += 1
            else:
                np.testing.assert_array_equal(now[key], values[key])
        with pytest.raises(DamagedBlock):
            np.asarray(load_array(folder / "x.npy", lazily=True))
        with pytest.raises(DamagedBlock):
            load_array(folder / "x.npy")
        (folder / "x.npy").write_bytes(_bytes(values))
    assert refused > 5
    np.testing.assert_array_equal(load_array(folder / "x.npy"), values)


@pytest.mark.usefixtures("large")
def test_rows_of_a_large_cache_are_those_of_a_small_one(tmp_path, rng, capfd, monkeypatch):
    """And a damaged one is made again by the next process that opens it."""
    cache = TokenCache.of(Texts(TEXTS), BYTES, tmp_path / "large")
    assert isinstance(cache.tokens, CheckedArray) and isinstance(cache.num_bytes, CheckedArray)
    assert not isinstance(cache.offsets, CheckedArray)
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "SMALL", 1 << 20)
        plain = TokenCache.of(Texts(TEXTS), BYTES, tmp_path / "small")
    rows = np.array([5, 0, -1, len(PackedRows(plain, 16)) - 1])
    expected = PackedRows(plain, 16).batch(rows)
    for name, found in PackedRows(cache, 16).batch(rows).items():
        np.testing.assert_array_equal(found, expected[name])
    assert cache.num_bytes.sum() == plain.num_bytes.sum()
    flip(cache.folder / "tokens.uint16", rng)
    damaged = TokenCache(cache.folder)  # nothing is read yet
    with pytest.raises(DamagedBlock):
        PackedRows(damaged, 16).batch(np.arange(len(PackedRows(damaged, 16))))
    assert (cache.folder / DAMAGED).exists() and not capfd.readouterr().err
    again = TokenCache.of(Texts(TEXTS), BYTES, tmp_path / "large")
    assert "of tokens.uint16 are not as they were written; it is made again" in capfd.readouterr().err
    np.testing.assert_array_equal(np.asarray(again.tokens), np.asarray(plain.tokens))


def test_data_of_an_earlier_version_are_known_by_their_sizes(tmp_path, capfd):
    folder = build_once(tmp_path / "kind" / "name", lambda new: (new / "x.int8").write_bytes(bytes(9)))
    (folder / CHECKSUMS).unlink()
    (folder / SIZES).write_text(json.dumps({"x.int8": 9}))
    (folder / "x.int8").write_bytes(b"x" * 9)
    again = build_once(folder, lambda new: (new / "x.int8").write_bytes(bytes(9)))
    assert map_arrays(again)["x"].tolist() == [120] * 9 and not capfd.readouterr().err
    (folder / "x.int8").write_bytes(b"x" * 8)
    again = build_once(folder, lambda new: (new / "x.int8").write_bytes(bytes(9)))
    assert map_arrays(again)["x"].tolist() == [0] * 9
    assert "x.int8 has 8 of 9 bytes; it is made again" in capfd.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", '{"x": 5}', '{"x": [1, "zz"]}', '{"../x": [0, ""]}', "5"])
def test_checksums_that_are_none(tmp_path, capfd, content):
    folder = build_once(tmp_path / "kind" / "name", lambda new: (new / "x").write_text("x"))
    (folder / CHECKSUMS).write_text(content)
    build_once(folder, lambda new: (new / "x").write_text("x"))
    assert f"{CHECKSUMS} is not readable; it is made again" in capfd.readouterr().err
    build_once(folder, lambda new: None)  # nothing to do
    assert (folder / "x").read_text() == "x" and not capfd.readouterr().err
