"""That damage of prepared data is found: files of another size when they are opened, all other changes on
demand."""

import shutil

import numpy as np
import pytest

from tests.data.documents import Texts
from transformer.data.cache import verify
from transformer.data.cache.disk_cache import CHECKSUMS, build_once, file_digest, load_values
from transformer.data.cache.token_cache import TokenCache
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

BYTES = Tokenizer.train("bytes")
TEXTS = [f"record {i}: naïve {i * i} " + "words " * (i % 5) for i in range(90)]


def flip(file, rng):
    """Flips one bit of a file."""
    content = bytearray(file.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


@pytest.mark.thorough
def test_each_of_a_hundred_flipped_bits_is_found_and_the_data_are_made_again(tmp_path, rng, capfd):
    """In all files of a cache, that of the checksums too: by its opening, or by a check on demand."""
    cache = TokenCache.of(Texts(TEXTS), BYTES, tmp_path)
    names = ("tokens", "num_bytes", "offsets", "lost")
    before = {name: np.array(getattr(cache, name)) for name in names}
    assert verify.main([str(tmp_path)]) == 0 and capfd.readouterr() == ("", "")
    files = sorted(cache.folder.iterdir())
    for number in range(100):
        flip(file := files[number % len(files)], rng)
        assert verify.main([str(tmp_path)]) == 1, file
        assert capfd.readouterr().out.startswith(f"{cache.folder}: ")
        assert verify.main([str(tmp_path), "--delete"]) == 0 and not cache.folder.exists()
        again = TokenCache.of(Texts(TEXTS), BYTES, tmp_path)
        for name in names:
            np.testing.assert_array_equal(getattr(again, name), before[name])
        assert capfd.readouterr().out.endswith("; deleted\n")


def test_only_the_damaged_folder_is_deleted(tmp_path, capfd):
    good, bad = (
        build_once(tmp_path / "kind" / name, lambda new: (new / "x").write_text("x")) for name in "ab"
    )
    (bad / "x").write_text("y")
    assert verify.main([str(tmp_path), "--delete"]) == 0
    assert capfd.readouterr().out == f"{bad}: x has changed; deleted\n"
    assert (good / "x").read_text() == "x" and not bad.exists()


def test_data_of_an_earlier_version_are_known_by_their_sizes(tmp_path, capfd):
    folder = build_once(tmp_path / "kind" / "name", lambda new: (new / "x.int8").write_bytes(bytes(9)))
    (folder / CHECKSUMS).write_text('{"x.int8": [9, "e60914ae"]}')  # a CRC-32 of each 64 KB
    assert build_once(folder, lambda new: None) == folder and (folder / "x.int8").exists()
    assert verify.main([str(tmp_path)]) == 0 and capfd.readouterr() == ("", "")
    (folder / "x.int8").write_bytes(b"x" * 8)
    assert verify.main([str(tmp_path)]) == 1
    build_once(folder, lambda new: (new / "x.int8").write_bytes(bytes(9)))
    assert (folder / "x.int8").read_bytes() == bytes(9)
    assert "x.int8 has 8 of 9 bytes; it is made again" in capfd.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", '{"x": 5}', '{"x": []}', '{"../x": [0, ""]}', "5", None])
def test_checksums_that_are_none(tmp_path, capfd, content):
    folder = build_once(tmp_path / "kind" / "name", lambda new: (new / "x").write_text("x"))
    (folder / CHECKSUMS).unlink()
    if content is not None:
        (folder / CHECKSUMS).write_text(content)
    build_once(folder, lambda new: (new / "x").write_text("x"))
    assert load_values(folder / CHECKSUMS) == {"x": [1, file_digest(folder / "x")]}
    assert capfd.readouterr().err.endswith("; it is made again\n")


def test_values_that_are_not_readable_are_a_line(tmp_path):
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(UserError, match=r"x\.json: not readable \(.*\); delete its folder$"):
        load_values(tmp_path / "x.json")
    shutil.rmtree(tmp_path)
    with pytest.raises(UserError, match=r"x\.json: not readable"):
        load_values(tmp_path / "x.json")
