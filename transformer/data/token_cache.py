"""Tokenised documents in memory-mapped files: made once, read by any number of processes."""

import itertools
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer.data.sources import Source
from transformer.data.storage import build_once, digest
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 1
BATCH = 4 << 20
"""Characters tokenised at once: what bounds the memory, whatever the size of the corpus."""

BAR: dict[str, Any] = {"delay": 2, "leave": False, "dynamic_ncols": True}
"""Progress is shown of what takes longer than two seconds, and while it takes."""


class TokenCache:
    """The documents of one source under one tokenizer, end to end, each as `[bos] + tokens + [eos]`.

    Document i is tokens[offsets[i] : offsets[i + 1]]; `num_bytes` holds the UTF-8 bytes that each token
    stands for, which over a document add up to its size exactly: its eos counts what the tokens leave.
    All three are read-only views of files, so that opening them takes no time and no memory.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a complete cache."""
        self.folder = folder
        self.tokens, self.num_bytes, self.offsets = (
            np.memmap(file, file.suffix[1:], "r")
            for name in ("tokens", "num_bytes", "offsets")
            for file in folder.glob(f"{name}.*")
        )

    @classmethod
    def of(cls, source: Source, tokenizer: Tokenizer, data_folder: Path) -> "TokenCache":
        """Opens the cache of `source` and `tokenizer`, which is made where there is none of exactly these.

        Raises:
          UserError: the source has no text, or text that cannot be read.
        """
        key = digest(FORMAT, source.identity, tokenizer.identity)
        return cls(build_once(data_folder / "tokens" / key, lambda new: _write(source, tokenizer, new)))


def _write(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    if not len(source):
        raise UserError(f"{source.name}: no text; give more, or data.validation_source")
    eos = tokenizer.eos_id
    token_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    count_type = tokenizer.count_type
    bar = tqdm(desc=f"tokenising {source.name}", unit="B", unit_scale=True, **BAR)
    offsets = array("q", [0])
    with (
        bar,
        open(folder / f"tokens.{token_type}", "wb") as tokens_file,
        open(folder / f"num_bytes.{count_type}", "wb") as bytes_file,
    ):
        remaining = 0
        for batch in _batches(source):
            texts = [text for text, _, _ in batch]
            ids: list[np.ndarray] = []
            counts: list[np.ndarray] = []
            for (text, first, last), (i, n) in zip(batch, tokenizer.encode_counting(texts), strict=True):
                size = len(text) if text.isascii() else len(text.encode())
                bar.update(size)
                remaining = size - int(n.sum()) + (0 if first else remaining)
                ids += [np.array([eos] * first), i, np.array([eos] * last)]
                counts += [np.array([0] * first), n, np.array([remaining] * last)]
                offsets[-1] += len(i) + first + last
                if last:
                    offsets.append(offsets[-1])
            np.concatenate(ids).astype(token_type).tofile(tokens_file)
            np.concatenate(counts).astype(count_type).tofile(bytes_file)
    with open(folder / "offsets.int64", "wb") as offsets_file:
        np.concatenate([[0], offsets[:-1]]).astype(np.int64).tofile(offsets_file)


def _batches(source: Source) -> Iterator[list[tuple[str, bool, bool]]]:
    """Pieces of documents, each with whether it is its document's first and last, some `BATCH` at a time."""
    batch: list[tuple[str, bool, bool]] = []
    size = 0
    for index in range(len(source)):
        pieces = itertools.chain(source.pieces(index), [None])
        text, first = next(pieces), True
        for following in pieces:
            assert text is not None
            batch.append((text, first, following is None))
            size += len(text)
            text, first = following, False
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
