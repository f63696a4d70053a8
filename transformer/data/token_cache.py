"""Tokenised documents in memory-mapped files: made once, read by any number of processes."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from transformer.data.sources import Source
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 1
LONG = 20_000
"""Documents from which on a progress bar is worth its line."""


class TokenCache:
    """The documents of one source under one tokenizer, end to end.

    `tokens` and `num_bytes` have one entry per token (see `Tokenizer.documents`); document i is
    tokens[offsets[i] : offsets[i + 1]]. All three are read-only views of files: opening costs nothing, and
    pages are read as they are used.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a complete cache."""
        self.folder = folder
        self.tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        self.num_bytes = np.load(folder / "num_bytes.npy", mmap_mode="r")
        self.offsets = np.load(folder / "offsets.npy", mmap_mode="r")

    @classmethod
    def of(cls, source: Source, tokenizer: Tokenizer, cache_dir: Path) -> "TokenCache":
        """Opens the cache of `source` and `tokenizer` below `cache_dir`, tokenising first where there is none.

        Its name is a hash of both and of the format, so that a change of either makes a new one. It is
        written elsewhere and renamed when complete: a killed process leaves nothing half-done, and of two
        processes that start together the slower one finds its work done and drops its own.
        """
        key = json.dumps([FORMAT, source.identity, tokenizer.content])
        folder = cache_dir / "tokens" / hashlib.sha256(key.encode()).hexdigest()[:20]
        if not (folder / "offsets.npy").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.part-"))
            try:
                _write(source, tokenizer, part)
                try:
                    os.rename(part, folder)
                except OSError:
                    if not (folder / "offsets.npy").exists():
                        raise
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return cls(folder)


def _write(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    token_type = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    offsets = [0]
    with open(folder / "tokens.raw", "wb") as tokens_file, open(folder / "bytes.raw", "wb") as bytes_file:
        texts = (source[i] for i in range(len(source)))
        for tokens, num_bytes in tqdm(
            tokenizer.documents(texts),
            "tokenising",
            len(source),
            unit=" documents",
            leave=False,
            disable=len(source) < LONG,
        ):
            tokens_file.write(tokens.astype(token_type).tobytes())
            bytes_file.write(num_bytes.tobytes())
            offsets.append(offsets[-1] + len(tokens))
    if len(offsets) == 1:
        raise UserError(f"data.source: {source.identity} holds no document")
    _finish(folder / "tokens.raw", folder / "tokens.npy", token_type, offsets[-1])
    _finish(folder / "bytes.raw", folder / "num_bytes.npy", np.uint32, offsets[-1])
    np.save(folder / "offsets.npy", np.array(offsets, np.int64))


def _finish(raw: Path, path: Path, dtype: type, length: int) -> None:
    """Gives raw numbers the header of an .npy file."""
    numbers = np.memmap(raw, dtype, "r", shape=(length,))
    np.save(path, numbers)
    raw.unlink()
