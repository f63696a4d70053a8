"""Tokenised documents in memory-mapped files: made once, read by any number of processes."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer.data.disk_cache import build_once, digest
from transformer.data.sources import Source
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 2
BATCH = 4 << 20
"""Characters tokenised at once: what bounds the memory, whatever the size of the corpus."""

BAR: dict[str, Any] = {"delay": 2, "leave": False, "dynamic_ncols": True}
"""Progress is shown of what takes longer than two seconds, and while it takes."""


class TokenCache:
    """The documents of one source under one tokenizer, end to end, each as `[bos] + tokens + [eos]`.

    Document i is tokens[offsets[i] : offsets[i + 1]]; `num_bytes` holds the UTF-8 bytes that each token
    stands for, which over a document add up to its size exactly: its eos counts what the tokens leave.
    All three are read-only views of files, so that opening them takes no time and no memory. `lost` has the
    number of documents that the tokens do not give back as they were, and the bytes of the pieces of them of
    which that is so.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a complete cache."""
        self.folder = folder
        self.tokens, self.num_bytes, self.offsets = (
            np.memmap(file, file.suffix[1:], "r")
            for name in ("tokens", "num_bytes", "offsets")
            for file in folder.glob(f"{name}.*")
        )
        self.lost = np.fromfile(folder / "lost.int64", np.int64)

    def document(self, index: int) -> np.ndarray:
        """The tokens of a document, with its beginning and its end."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def document_bytes(self, index: int) -> np.ndarray:
        """The bytes that they stand for."""
        return self.num_bytes[self.offsets[index] : self.offsets[index + 1]]

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
    token_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    count_type = tokenizer.count_type
    bar = tqdm(desc=f"tokenising {source.name}", unit="B", unit_scale=True, **BAR)
    with (
        bar,
        open(folder / f"tokens.{token_type}", "wb") as tokens_file,
        open(folder / f"num_bytes.{count_type}", "wb") as bytes_file,
        open(folder / "offsets.int64", "wb") as offsets_file,
    ):
        documents, lost, lost_bytes = 0, set(), 0
        written = np.zeros(1, np.int64)
        written.tofile(offsets_file)
        # The bytes that the tokens of a document begun before left, and whether it ended.
        left, ended = 0, True
        for texts, last in _batches(source):
            first, ended = np.append(ended, last[:-1]), last[-1]
            coded = tokenizer.encode_counting(texts)
            ids = np.concatenate([ids for ids, _ in coded])
            counts = np.concatenate([counts for _, counts in coded])
            lengths = np.array([len(ids) for ids, _ in coded])
            sizes = np.array([len(text) if text.isascii() else len(text.encode()) for text in texts])

            gone = ~tokenizer.gives_back(texts, [ids for ids, _ in coded])
            lost |= set((documents + np.cumsum(first))[gone].tolist())
            lost_bytes += int(sizes[gone].sum())
            documents += int(first.sum())

            ends = np.cumsum(lengths + first + last)
            eos = ends[last] - 1
            is_text = np.ones(ends[-1], bool)
            is_text[eos] = is_text[(ends - lengths - last)[first] - 1] = False
            tokens = np.full(ends[-1], tokenizer.eos_id, token_type)
            tokens[is_text] = ids

            counted = np.append(0, np.cumsum(counts, dtype=np.int64))[np.cumsum(lengths)]
            uncounted = left + np.cumsum(sizes) - counted  # up to the end of each piece
            num_bytes = np.zeros(ends[-1], count_type)
            num_bytes[is_text] = counts
            num_bytes[eos] = np.diff(uncounted[last], prepend=0)
            left = uncounted[-1] - (uncounted[last][-1] if last.any() else 0)

            tokens.tofile(tokens_file)
            num_bytes.tofile(bytes_file)
            (written + ends[last]).tofile(offsets_file)
            written += ends[-1]
            bar.update(int(sizes.sum()))
        np.array([len(lost), lost_bytes], np.int64).tofile(folder / "lost.int64")


def _batches(source: Source) -> Iterator[tuple[list[str], np.ndarray]]:
    """Pieces of documents, some `BATCH` at a time, and whether each is the last of its document."""
    pieces = ((index, piece) for index in range(len(source)) for piece in source.pieces(index))
    texts: list[str] = []
    last: list[bool] = []
    size = 0
    for (index, text), (following, _) in itertools.pairwise(itertools.chain(pieces, [(-1, "")])):
        texts.append(text)
        last.append(index != following)
        size += len(text) + 1
        if size >= BATCH:
            yield texts, np.array(last)
            texts, last, size = [], [], 0
    if texts:
        yield texts, np.array(last)
