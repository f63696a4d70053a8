"""The text group of a config, from its source to batches."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from transformer.data.loader import Loader
from transformer.data.packing import PackedRows
from transformer.data.sources import Source, data_folder, open_source
from transformer.data.token_cache import TokenCache
from transformer.data.tokenizers import KINDS, Tokenizer
from transformer.errors import UserError


@dataclass(frozen=True)
class TextDataConfig:
    """Documents of text, packed into rows; `configs/base.py` says what each key means."""

    source: str = "stdlib"
    text_field: str = "text"
    document: Literal["file", "paragraph", "line"] = "file"
    validation_source: str = ""
    tokenizer: str = "bpe"
    vocab_size: int = 4096
    sequence_length: int = 256
    cache_dir: str = ""
    workers: int = 1

    def __post_init__(self) -> None:
        if self.sequence_length < 1:
            raise UserError(f"sequence_length: {self.sequence_length}; expected at least 1")
        if self.workers < 1:
            raise UserError(f"workers: {self.workers}; expected at least 1 thread")
        if self.tokenizer == "bpe" and self.vocab_size < 257:
            raise UserError(f"vocab_size: {self.vocab_size}; bpe needs at least 257, the bytes and the end")


class TextData:
    """Tokenizer, rows and loaders of one config."""

    def __init__(self, config: TextDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer`, a run folder's own, goes before what the config says; without it one is loaded, or
        made from the training split and kept in the data folder."""
        self.config = config
        self.folder = data_folder(config.cache_dir)
        self.tokenizer = tokenizer or self._make_tokenizer()

    def source(self, split: str) -> Source:
        """The documents of a split."""
        c, name = self.config, self.config.source
        if split == "validation" and c.validation_source:
            name, split = c.validation_source, split if c.validation_source.startswith("tfds:") else "all"
        elif split == "train" and c.validation_source and not name.startswith(("tfds:", "stdlib")):
            split = "all"
        return open_source(name, split, field=c.text_field, document=c.document, cache_dir=c.cache_dir)

    def rows(self, split: str) -> PackedRows:
        """The packed rows of a split, tokenised first where that was never done."""
        cache = TokenCache.of(self.source(split), self.tokenizer, self.folder)
        return PackedRows(cache, self.config.sequence_length)

    def loader(self, split: str, batch_size: int, **options) -> Loader:
        """Batches of a split; `options` as for `Loader`."""
        return Loader(self.rows(split), batch_size, workers=self.config.workers, **options)

    def text(self, split: str) -> Iterator[str]:
        """The documents of a split as text."""
        source = self.source(split)
        return (source[i] for i in range(len(source)))

    def _make_tokenizer(self) -> Tokenizer:
        c = self.config
        if c.tokenizer == "bytes":
            return Tokenizer.train("bytes", [])
        if c.tokenizer not in KINDS:
            return Tokenizer.load(c.tokenizer)
        source = self.source("train")
        key = json.dumps([source.identity, c.tokenizer, c.vocab_size if c.tokenizer == "bpe" else 0])
        path = self.folder / "tokenizers" / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
        if not path.exists():
            made = Tokenizer.train(c.tokenizer, self.text("train"), c.vocab_size)
            path.parent.mkdir(parents=True, exist_ok=True)
            made.save(path)
        return Tokenizer.load(path)
