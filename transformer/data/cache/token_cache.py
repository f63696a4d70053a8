"""Tokenised documents in memory-mapped files, made once and shared by all processes."""

import functools
import itertools
import operator
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from transformer.data.cache.disk_cache import build_once, digest, map_arrays
from transformer.data.sources import Source
from transformer.data.tokenization.token_bytes import (
    Encode,
    Encoded,
    byte_sizes,
    encode_by_offsets,
    encode_by_sizes,
)
from transformer.data.tokenization.tokenizer_kinds import byte_tokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 2

BAR: dict[str, Any] = {"delay": 2, "leave": False, "dynamic_ncols": True}
"""Options of progress bars: shown after two seconds, removed at the end."""


class TokenCache:
    """The concatenated documents of one source under one tokenizer, each as `[bos] + tokens + [eos]`.

    Document i is tokens[offsets[i] : offsets[i + 1]]. `num_bytes` has the number of UTF-8 bytes of each
    token; the sum over a document is exactly its size, because its eos counts what the tokens leave. All
    three are read-only memory maps. `lost` has the number of documents that decoding does not reproduce, and
    the bytes of their pieces for which that is so.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a complete cache."""
        self.folder, arrays = folder, map_arrays(folder)
        self.tokens, self.num_bytes = arrays["tokens"], arrays["num_bytes"]
        self.offsets, self.lost = arrays["offsets"], arrays["lost"]

    def document(self, index: int) -> np.ndarray:
        """The tokens of a document, with bos and eos."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def document_at(self, place: int) -> int:
        """The number, from 0, of the document of the token at this place."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1

    @classmethod
    def of(cls, source: Source, tokenizer: Tokenizer, data_folder: Path) -> "TokenCache":
        """Opens the cache of `source` and `tokenizer`, or makes it.

        Raises:
          UserError: the source has no text, or text that cannot be read.
        """
        key = digest(FORMAT, source.identity, tokenizer.identity)
        return cls(build_once(data_folder / "tokens" / key, functools.partial(_write, source, tokenizer)))


BLANK: Any = types.SimpleNamespace(
    tokens=np.zeros(3, np.uint16), num_bytes=np.zeros(3, np.uint8), offsets=np.array([0, 3])
)
"""The cache of one document of one token: rows packed from it have the shapes of all others."""


def _write(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    if not len(source):
        raise UserError(f"{source.name}: no text; give more, or data.validation_source")
    encode, count_type = encoder(tokenizer)
    token_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    start, end = (np.array(i, token_type).tobytes() for i in (tokenizer.bos_id, tokenizer.eos_id))
    no_bytes = bytes(count_type.itemsize)
    length = lost_documents = lost_bytes = 0
    with (
        tqdm(desc=f"tokenising {source.name}", unit="B", unit_scale=True, **BAR) as bar,
        open(folder / f"tokens.{token_type}", "wb") as tokens,
        open(folder / f"num_bytes.{count_type}", "wb") as num_bytes,
        open(folder / "offsets.int64", "wb") as offsets,
    ):
        _append(offsets, 0, np.int64)
        for _, pieces in itertools.groupby(_encoded(source, encode), key=operator.itemgetter(0)):
            tokens.write(start)
            num_bytes.write(no_bytes)
            left = lost = 0
            for _, size, ids, counts, is_lost in pieces:
                _append(tokens, ids, token_type)
                _append(num_bytes, counts, count_type)
                length += len(ids)
                left += size - int(counts.sum())
                lost += size if is_lost else 0
                bar.update(size)
            tokens.write(end)
            _append(num_bytes, left, count_type)
            length += 2
            _append(offsets, length, np.int64)
            lost_documents += lost > 0
            lost_bytes += lost
    np.array([lost_documents, lost_bytes]).tofile(folder / "lost.int64")


def _append(file: BinaryIO, values: np.ndarray | int, dtype: Any) -> None:
    file.write(np.asarray(values, dtype).tobytes())


def _encoded(source: Source, encode: Encode) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, bool]]:
    """For each piece of each document: the document's index, the piece's bytes, and the result of
    `encode`."""
    all_pieces = ((index, text) for index in range(len(source)) for text in source.pieces(index))
    pieces, ahead = itertools.tee(all_pieces)
    for (index, text), encoded in zip(pieces, encode(text for _, text in ahead), strict=True):
        yield index, len(text.encode()), *encoded


def encoder(tokenizer: Tokenizer) -> tuple[Encode, np.dtype]:
    """The function that encodes texts and counts bytes, and a NumPy type for the bytes of one token."""
    if tokenizer.identity == Tokenizer(byte_tokens()).identity:
        return encode_bytes, np.dtype(np.uint8)
    sizes = byte_sizes(tokenizer)
    if sizes is None:
        return functools.partial(encode_by_offsets, tokenizer.backend), np.dtype(np.uint32)
    count_type = np.dtype(np.uint8 if sizes.max() < 256 else np.uint32)
    return functools.partial(encode_by_sizes, tokenizer.backend, sizes), count_type


def encode_bytes(texts: Iterable[str]) -> Iterator[Encoded]:
    """For the tokenizer whose tokens are bytes."""
    for text in texts:
        ids = np.frombuffer(text.encode(), np.uint8)
        yield ids, np.ones_like(ids), False
