"""The text of a run: from a config's `data` group to batches."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tqdm import tqdm

from transformer.data.loader import Loader
from transformer.data.packing import PackedRows
from transformer.data.sources import SOURCES, Source, open_source
from transformer.data.storage import build_once, data_folder, digest
from transformer.data.token_cache import BAR, TokenCache
from transformer.data.tokenizers import TOKENIZERS, Tokenizer
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.data.pairs import PairDataConfig


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
        check_tokens(self)
        if self.sequence_length < 1:
            raise UserError(f"sequence_length: {self.sequence_length}; expected at least 1 token")


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
        with naming("validation_source" if held_out else "source"):
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
        c = self.config
        return make_tokenizer(c.tokenizer, c.vocab_size, lambda: [self.source("train")], self.folder)


def make_tokenizer(
    kind: str, vocab_size: int, sources: Callable[[], Sequence[Source]], folder: Path
) -> Tokenizer:
    """What the key `data.tokenizer` names: one of `TOKENIZERS`, which learns from `sources` (opened only for
    that) and is kept in the data folder, or a `tokenizer.json`.

    Raises:
      UserError: neither, or a file that is no tokenizer.
    """
    if kind not in TOKENIZERS:
        if not Path(kind).expanduser().is_file():
            kinds = ", ".join(TOKENIZERS)
            raise UserError(f"data.tokenizer: {kind!r} is no file; expected one, or one of {kinds}")
        with naming("tokenizer"):
            return Tokenizer.load(kind)
    if kind == "bytes":
        return Tokenizer.train(kind)
    opened = sources()
    key = digest([source.identity for source in opened], kind, vocab_size if kind == "bpe" else 0)

    def build(new: Path) -> None:
        texts = itertools.chain.from_iterable(source.texts() for source in opened)
        bar = tqdm(texts, f"learning {kind} from {opened[0].name}", unit=" pieces", **BAR)
        Tokenizer.train(kind, bar, vocab_size).save(new / "tokenizer.json")

    return Tokenizer.load(build_once(folder / "tokenizers" / key, build) / "tokenizer.json")


def check_tokens(config: "TextDataConfig | PairDataConfig") -> None:
    """Raises UserError where the keys on sources, tokens and threads have impossible values."""
    for key in ("source", "validation_source"):
        value = getattr(config, key)
        if (key == "source" or value) and value.partition(":")[0] not in SOURCES:
            expected = ", ".join(SOURCES)
            raise UserError(f"{key}: {value!r}; expected one of {expected}, then :PATH or :NAME")
    if config.tokenizer == "bpe" and config.vocab_size < 257:
        raise UserError(f"vocab_size: {config.vocab_size}; bpe needs at least 257: every byte, and the end")
    if config.workers < 0:
        raise UserError(f"workers: {config.workers}; expected a number of threads, or 0 for none")


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Errors inside begin with the key of the config that they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"data.{key}: {error}") from error.__cause__
