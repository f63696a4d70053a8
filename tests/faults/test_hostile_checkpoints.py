"""Checkpoints from anywhere: whatever is planted in one is refused in a line, within little memory, and
nothing outside of its folder is read or written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import tensorstore

from tests.runs import listing
from tests.training.checkpoints.test_checkpoint import trained
from tests.training.toy import assert_same
from transformer.errors import UserError
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.untrusted import DamagedCheckpoint

# Orbax leaves tasks whose errors no one reads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KERNEL = "params.Dense_0.kernel"
DEEP = b"[" * 1_000_000
MEMORY = 256 << 20
"""Bytes that reading may take at most; a bomb has four times as many."""

BLOCK = 128 << 10
"""The most bytes that a block of a frame of Zstandard unpacks into (RFC 8878, section 3.1.1.2)."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    state, abstract = trained(3, ema=True)
    with Checkpoints(folder, keep_best="loss") as checkpoints:
        checkpoints.save(3, state, {"loss": 1.0})
    return folder, jax.device_get(state), abstract


def store(item: Path) -> tensorstore.KvStore:
    """The database of arrays, to write what one likes."""
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{item}/"}).result()


def frame(size: int, said: int | None) -> bytes:
    """A frame of Zstandard of that many zeros, in blocks of one repeated byte, that says another size or none
    (RFC 8878, section 3.1.1)."""
    header = b"\x00\x38" if said is None else b"\x80\x38" + said.to_bytes(4, "little")
    block = BLOCK << 3 | 1 << 1
    blocks = [*[block] * (size // BLOCK - 1), block | 1]
    return b"\x28\xb5\x2f\xfd" + header + b"".join(each.to_bytes(3, "little") + b"\0" for each in blocks)


def chunk(content: bytes) -> Callable[[Path, Path], None]:
    """Another chunk of a matrix of 8 x 8."""
    return lambda item, _: store(item).write(f"{KERNEL}/0.0", content).result()


def described(**changes) -> Callable[[Path, Path], None]:
    """Another description of this matrix."""

    def plant(item: Path, _: Path) -> None:
        found = store(item)
        old = json.loads(found.read(f"{KERNEL}/.zarray").result().value)
        found.write(f"{KERNEL}/.zarray", json.dumps(old | changes).encode()).result()

    return plant


def file(name: str, content: bytes) -> Callable[[Path, Path], None]:
    """Another file of the checkpoint."""
    return lambda item, _: (item / name).write_bytes(content) and None


def sparse(name: str) -> Callable[[Path, Path], None]:
    """A file of zeros that takes no place on the disk."""

    def plant(item: Path, _: Path) -> None:
        (item / name).touch()
        os.truncate(item / name, 8 * MEMORY)

    return plant


def renamed(name: str) -> Callable[[Path, Path], None]:
    """An array with another name, in what lists them."""

    def plant(item: Path, outside: Path) -> None:
        text = (item / "_METADATA").read_text()
        (item / "_METADATA").write_text(text.replace('"kernel"', json.dumps(name.format(outside))))

    return plant


def values(name: str, **changes) -> Callable[[Path, Path], None]:
    """Other values in a file of JSON."""

    def plant(item: Path, _: Path) -> None:
        (item / name).write_text(json.dumps(json.loads((item / name).read_text()) | changes))

    return plant


def leading_out(way: str) -> Callable[[Path, Path], None]:
    """The nodes of the database are outside."""

    def plant(item: Path, outside: Path) -> None:
        base = tensorstore.KvStore.open({"driver": "file", "path": f"{item}/"}).result()
        manifest = tensorstore.ocdbt.dump(base).result()
        shutil.move(item / "d", outside / "d")
        root = manifest["versions"][-1]["root"]
        root["location"] = root["location"].replace("btreenode::", f"btreenode:{way.format(outside)}/:", 1)
        (item / "manifest.ocdbt").write_bytes(tensorstore.ocdbt.undump_manifest(manifest))

    return plant


def large(item: Path, outside: Path) -> None:
    """A chunk that is as large as is said of it, of which an array takes little."""
    described(chunks=[4 * MEMORY >> 12, 1 << 10])(item, outside)
    chunk(frame(4 * MEMORY, None))(item, outside)


def linked(item: Path, outside: Path) -> None:
    """A file of the database is a link."""
    (name,) = (item / "d").iterdir()
    shutil.move(name, outside / "theirs")
    name.symlink_to(outside / "theirs")


def folder_linked(item: Path, outside: Path) -> None:
    """A folder is one."""
    shutil.move(item / "d", outside / "d")
    (item / "d").symlink_to(outside / "d")


def pipe(item: Path, _: Path) -> None:
    """A pipe, which would be waited for."""
    (item / "_METADATA").unlink()
    os.mkfifo(item / "_METADATA")


REFUSED: dict[str, Callable[[Path, Path], object]] = {
    "bomb": chunk(frame(4 * MEMORY, None)),
    "bomb that says so": chunk(frame(4 * MEMORY, 4 * MEMORY)),
    "bomb that says otherwise": chunk(frame(4 * MEMORY, 256)),
    "bomb of a large chunk": large,
    "2**60 elements": described(shape=[1 << 60], chunks=[1 << 60]),
    "chunks of 2**40": described(chunks=[1 << 20, 1 << 20]),
    "negative": described(shape=[-8, -8]),
    "no numbers": described(shape="88", chunks=None),
    "type": described(dtype="<f999"),
    "structure": described(dtype=[["a", "<f4"], ["b", "<i8"]]),
    "gzip": described(compressor={"id": "gzip", "level": 9}),
    "blosc": described(compressor={"id": "blosc"}),
    "deep array": lambda item, _: store(item).write(f"{KERNEL}/.zarray", DEEP).result(),
    "no database": lambda item, _: (item / "manifest.ocdbt").unlink(),
    "leading out": leading_out("../../../outside"),
    "leading away": leading_out("{0}"),
    "link": linked,
    "folder that is a link": folder_linked,
    "pipe": pipe,
    "link in metrics": lambda item, outside: (item / "../metrics/more").symlink_to("/etc/passwd"),
    "metrics": file("../metrics/metrics", b"[1]"),
    "deep metrics": file("../metrics/metrics", DEEP),
    "name above": renamed("../../../../{0}/kernel"),
    "name of a file": renamed("{0}/kernel"),
    "deep list of arrays": file("_METADATA", DEEP),
    "list of nothing": file("_METADATA", b"{}"),
    "deep checksums": file("../_CHECKPOINT_METADATA", DEEP),
    "checksums of text": values("../_CHECKPOINT_METADATA", custom_metadata={"checksums": {"step": 5}}),
    "checksums that are a number": values("../_CHECKPOINT_METADATA", custom_metadata={"checksums": 5}),
    "checksums in a list": values("../_CHECKPOINT_METADATA", custom_metadata=[1]),
    "deep shardings": file("_sharding", DEEP),
    "shardings": file(
        "_sharding", b'{"cGFyYW1z": {"sharding_type": "../../x", "shape": [1152921504606846976]}}'
    ),
    "deep shapes": file("array_metadatas/process_0", DEEP),
    "large metrics": sparse("../metrics/metrics"),
    "large list of arrays": sparse("_METADATA"),
    "large checksums": sparse("../_CHECKPOINT_METADATA"),
    "large shardings": sparse("_sharding"),
    "large shapes": sparse("array_metadatas/process_0"),
    "large manifest": sparse("manifest.ocdbt"),
}
HARMLESS: dict[str, Callable[[Path, Path], object]] = {
    "another format": lambda item, _: store(item).write(f"{KERNEL}/zarr.json", b"{}").result(),
    "a metric that is text": file("../metrics/metrics", b'{"loss": "x"}'),
    "other metrics": file("../metrics/metrics", b'{"lost": [1]}'),
    "large chunk of no array": sparse("d/more"),
    "huge write shape": values("_METADATA", store_array_data_equal_to_fill_value=True),
}


def peak() -> int:
    """The most memory of this process since `forget`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("name", [*REFUSED, *HARMLESS])
def test_what_is_planted_is_refused_in_a_line_or_does_nothing(saved, tmp_path, name):
    source, state, abstract = saved
    outside, folder = tmp_path / "outside", tmp_path / "checkpoints"
    outside.mkdir()
    (outside / "kernel").write_text("theirs")
    shutil.copytree(source, folder)
    (REFUSED | HARMLESS)[name](folder / "3" / "default", outside)
    before = listing(outside)
    Path("/proc/self/clear_refs").write_text("5")
    used = peak()
    try:
        with Checkpoints(folder, write=False, keep_best="loss") as checkpoints:
            found = checkpoints.restore(abstract, "best")
    except UserError as error:
        assert "\n" not in str(error) and str(error).startswith(f"{folder}/3: the checkpoint is "), error
        assert name in REFUSED
    else:
        assert name in HARMLESS
        assert_same(state, jax.device_get(found))
    assert peak() - used < MEMORY and listing(outside) == before


def test_chunks_of_a_divided_state_are_its_own(tmp_path):
    state, abstract = trained(2, (1, 4, 2))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state)
        checkpoints.wait()
        assert_same(jax.device_get(state), jax.device_get(checkpoints.restore(abstract)))


def test_a_damaged_checkpoint_among_sound_ones_is_named_before_it_is_read(saved, tmp_path):
    """The metrics of all are read when the folder is opened to write, and where the best one is asked for."""
    source, state, abstract = saved
    folder = tmp_path / "checkpoints"
    shutil.copytree(source, folder)
    (folder / "2").mkdir()
    (folder / "2" / "x").symlink_to("/etc/passwd")
    with Checkpoints(folder, keep_best="loss", write=False) as checkpoints:
        assert_same(state, jax.device_get(checkpoints.restore(abstract, 3)))
        for reading in (lambda: checkpoints.find("best"), Checkpoints(folder).steps):
            with pytest.raises(DamagedCheckpoint, match=r"/2: .*: x: a link to /etc/passwd; expected"):
                reading()
