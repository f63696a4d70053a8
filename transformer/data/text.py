"""The text of a run: from a config's `data` group to batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from transformer.data.loader import Loader
from transformer.data.packing import PackedRows
from transformer.data.sources import SOURCES, Source, open_source
from transformer.data.storage import build_once, data_folder, digest
from transformer.data.token_cache import BAR, TokenCache
from transformer.data.tokenizers import TOKENIZERS, Tokenizer
from transformer.errors import UserError


@dataclass(frozen=True)
class TextDataConfig:
    """Documents of text, packed into rows; `configs/base.py` says what each key means."""

    source: str = "stdlib"
    text_field: str = "text"
    document: Literal["file", "line", "paragraph"] = "file"
    validation_source: str = ""
    tokenizer: str = "bpe"
    vocab_size: int = 4096
    sequence_length: int = 256
    cache_dir: str = ""
    workers: int = 1

    def __post_init__(self) -> None:
        for key in ("source", "validation_source"):
            value = getattr(self, key)
            if (key == "source" or value) and value.partition(":")[0] not in SOURCES:
                raise UserError(f"{key}: {value!r}; expected stdlib, text:GLOB, jsonl:GLOB or tfds:NAME")
        if self.tokenizer == "bpe" and self.vocab_size < 257:
            raise UserError(f"vocab_size: {self.vocab_size}; bpe needs at least 257: every byte, and the end")
        if self.sequence_length < 1:
            raise UserError(f"sequence_length: {self.sequence_length}; expected at least 1 token")
        if self.workers < 0:
            raise UserError(f"workers: {self.workers}; expected a number of threads, or 0 for none")


class TextData:
    """Tokenizer, packed rows and loaders of a config, each made when asked for and kept in the data folder.

    Raises:
      UserError: the source or the tokenizer is missing, unreadable or empty.
    """

    def __init__(self, config: TextDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer`, a run folder's own, goes before what the config says."""
        self.config = config
        self.folder = data_folder(config.cache_dir)
        self.tokenizer = tokenizer or self._make_tokenizer()

    def source(self, split: str) -> Source:
        """The documents of a split. With `validation_source` all of `source`'s files are for training, and
        validation and test are that one's."""
        c = self.config
        held_out = split != "train" and c.validation_source
        with _naming("validation_source" if held_out else "source"):
            return open_source(
                c.validation_source if held_out else c.source,
                split,
                field=c.text_field,
                document=c.document,
                divide=not c.validation_source,
                cache_dir=c.cache_dir,
            )

    def rows(self, split: str) -> PackedRows:
        """The packed rows of a split, tokenised first where that was never done."""
        cache = TokenCache.of(self.source(split), self.tokenizer, self.folder)
        return PackedRows(cache, self.config.sequence_length)

    def loader(self, split: str, batch_size: int, **options) -> Loader:
        """Batches of a split; `options` are those of `Loader`."""
        return Loader(self.rows(split), batch_size, workers=self.config.workers, **options)

    def text(self, split: str) -> Iterator[str]:
        """The text of a split, in pieces: what general compressors are to be compared on."""
        return self.source(split).texts()

    def _make_tokenizer(self) -> Tokenizer:
        kind, size = self.config.tokenizer, self.config.vocab_size
        if kind not in TOKENIZERS:
            if not Path(kind).expanduser().is_file():
                kinds = ", ".join(TOKENIZERS)
                raise UserError(f"data.tokenizer: {kind!r} is no file; expected one, or one of {kinds}")
            with _naming("tokenizer"):
                return Tokenizer.load(kind)
        if kind == "bytes":
            return Tokenizer.train(kind)
        source = self.source("train")
        key = digest(source.identity, kind, size if kind == "bpe" else 0)

        def build(new: Path) -> None:
            texts = tqdm(source.texts(), f"learning {kind} from {source.name}", unit=" pieces", **BAR)
            Tokenizer.train(kind, texts, size).save(new / "tokenizer.json")

        return Tokenizer.load(build_once(self.folder / "tokenizers" / key, build) / "tokenizer.json")


@contextmanager
def _naming(key: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"data.{key}: {error}") from error.__cause__
