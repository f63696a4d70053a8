"""Safetensors files, read tensor by tensor and written as they come, sharded or not.

A file is an unsigned 64-bit number, that many bytes of JSON, {name: {"dtype", "shape", "data_offsets"}}, and
the tensors' bytes. A sharded model has several, and model.safetensors.index.json says which has which.
Source: https://github.com/huggingface/safetensors, README, "Format".
"""

import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from transformer.errors import UserError
from transformer.interop.json_files import parse_object, read_object

DTYPES: dict[str, Any] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The types of tensors that can be read, by their names in a header."""

LONGEST_HEADER = 1 << 24
"""Bytes of a header. Those of the largest models have less than a megabyte."""

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The file of a model that is not sharded, and the list of the files of one that is."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is: that many bytes from `offset` of a file on are an array of this type and shape."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def open(self) -> np.ndarray:
        """The array, mapped from the file: only what is used is read, into memory that is freed with it."""
        if not self.nbytes:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)

    def equals(self, tensor: "Tensor") -> bool:
        """Whether the values of two arrays are equal; of each a few rows at a time are in memory."""
        parts = (slice(i, i + 1024) for i in range(0, self.shape[0] if self.shape else 0, 1024))
        return self.shape == tensor.shape and all(
            np.array_equal(self.open()[part], tensor.open()[part]) for part in parts
        )


def open_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model in a folder, by name; their bytes are not read.

    Raises:
      UserError: there are none; a file is damaged or not what its index says; a name of a file in the index
        leads elsewhere.
    """
    if (folder / WHOLE).is_file():
        return read_header(folder / WHOLE)
    if (folder / INDEX).is_file():
        return _read_shards(folder / INDEX)
    unread = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".pt", ".pth", ".h5")]
    why = f"; {unread[0]} is not read: such a file can run code, save it as safetensors" if unread else ""
    raise UserError(f"{folder}: there is no {WHOLE} and no {INDEX}{why}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise UserError(f"{index}: weight_map: expected the name of a file for each tensor")
    tensors: dict[str, Tensor] = {}
    for file in sorted({*files.values()}):
        if not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise UserError(
                f"{index}: weight_map: {file[:80]!r}; expected the name of a .safetensors file here"
            )
        if not (index.parent / file).is_file():
            raise UserError(f"{index}: weight_map names {file}, which is not there")
        for name, tensor in read_header(index.parent / file).items():
            if files.get(name) != file:
                raise UserError(f"{index.parent / file}: it has {_short(name)}, but {INDEX} says otherwise")
            tensors[name] = tensor
    if lacking := files.keys() - tensors.keys():
        name = min(lacking)
        raise UserError(f"{index.parent / files[name]}: it lacks {_short(name)}, which {INDEX} says it has")
    return tensors


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
      UserError: its header is too long or no JSON, or names tensors that overlap or lie outside the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, LONGEST_HEADER):
            at_most = f"from 2 to {min(max(size - 8, 0), LONGEST_HEADER):,}"
            raise UserError(f"{path}: a header of {length:,} bytes; expected {at_most}")
        entries = parse_object(file.read(length), path)
    entries.pop("__metadata__", None)
    room = size - 8 - length
    tensors = {name: _tensor(path, name, entry, 8 + length, room) for name, entry in entries.items()}
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset != end:
            problem = "overlaps another tensor" if tensor.offset < end else "leaves a gap before it"
            raise UserError(f"{path}: {_short(name)} {problem}")
        end += tensor.nbytes
    if end != size:
        raise UserError(f"{path}: {size - end:,} bytes after the last tensor")
    return tensors


def _tensor(path: Path, name: str, entry: Any, start: int, room: int) -> Tensor:
    """An entry of a header, checked; the tensors' bytes are `room` bytes from `start` on."""
    fields: Any = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UserError(
            f"{path}: {_short(name)}: dtype {str(dtype)[:40]!r}; expected one of {', '.join(DTYPES)}"
        )
    if not _sizes(shape) or len(shape) > 8:
        raise UserError(f"{path}: {_short(name)}: shape {str(shape)[:60]}; expected a list of sizes")
    if not _sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise UserError(
            f"{path}: {_short(name)}: data_offsets {str(offsets)[:60]}; expected two, up to {room:,}"
        )
    tensor = Tensor(path, DTYPES[dtype], tuple(shape), start + offsets[0])
    if tensor.nbytes != offsets[1] - offsets[0]:
        raise UserError(
            f"{path}: {_short(name)}: {offsets[1] - offsets[0]:,} bytes; {dtype} of shape {shape} has "
            f"{tensor.nbytes:,}"
        )
    return tensor


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 62 for size in value)


def _short(name: str) -> str:
    return name if len(name) <= 120 and name.isprintable() else repr(name[:120])


@dataclass(frozen=True)
class Output:
    """A tensor to write; `read` computes it when it is its turn."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(folder: Path, outputs: Iterable[Output], shard_bytes: int) -> None:
    """Writes the files of a model into a folder; a file has at most `shard_bytes`, or one tensor."""
    shards = [*_shards(outputs, shard_bytes)]
    if len(shards) == 1:
        return write_file(folder / WHOLE, shards[0])
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, shard)
        files |= {output.name: name for output in shard}
    total = sum(output.nbytes for shard in shards for output in shard)
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return None


def _shards(outputs: Iterable[Output], most: int) -> Iterator[list[Output]]:
    shard: list[Output] = []
    for output in outputs:
        if shard and sum(tensor.nbytes for tensor in shard) + output.nbytes > most:
            yield shard
            shard = []
        shard.append(output)
    yield shard


def write_file(path: Path, outputs: list[Output]) -> None:
    """Writes one file."""
    names: Mapping[np.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without which transformers refuses the file
    end = 0
    for output in outputs:
        places = [end, end := end + output.nbytes]
        header[output.name] = {
            "dtype": names[output.dtype],
            "shape": list(output.shape),
            "data_offsets": places,
        }
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for output in outputs:
            array = np.asarray(output.read(), output.dtype, order="C")
            assert array.shape == output.shape, output.name
            file.write(array.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
