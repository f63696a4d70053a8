"""Pairs of texts, a source and what is to be written from it: from a config's `data` group to batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformer.data.loader import Loader
from transformer.data.pair_packing import PackedPairs
from transformer.data.sources import Source, open_source
from transformer.data.storage import data_folder, digest
from transformer.data.text import check_tokens, make_tokenizer, naming
from transformer.data.token_cache import TokenCache
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError


class Joined(Source):
    """The texts of several fields of the same records, each on lines of its own."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self._parts = parts
        self.name = parts[0].name
        self.identity = parts[0].identity if len(parts) == 1 else digest([part.identity for part in parts])

    def __len__(self) -> int:
        return len(self._parts[0])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {self.field: "\n".join("".join(part.pieces(index)) for part in self._parts)}


@dataclass(frozen=True)
class PairDataConfig:
    """Pairs of texts, packed into rows; `configs/base.py` says what each key means."""

    source: str = "written_forms"
    source_field: str = "source"
    target_field: str = "target"
    validation_source: str = ""
    tokenizer: str = "bpe"
    vocab_size: int = 4096
    source_length: int = 128
    target_length: int = 128
    too_long: Literal["cut", "skip", "refuse"] = "cut"
    cache_dir: str = ""
    workers: int = 1

    def __post_init__(self) -> None:
        check_tokens(self)
        for key in ("source_length", "target_length"):
            if getattr(self, key) < 2:
                raise UserError(f"{key}: {getattr(self, key)}; expected at least 2: a token and the end")


class PairData:
    """Tokenizer, packed rows, loaders and texts of a config; source and target share one tokenizer.

    Raises:
      UserError: the source or the tokenizer is missing, unreadable or empty.
    """

    def __init__(
        self,
        config: PairDataConfig,
        tokenizer: Tokenizer | None = None,
        packing: Callable[..., PackedPairs] = PackedPairs,
    ) -> None:
        """`tokenizer`, a run folder's own, goes before what the config says; `packing` makes the rows."""
        self.config, self._packing = config, packing
        self.folder = data_folder(config.cache_dir)
        self.tokenizer = tokenizer or make_tokenizer(
            config.tokenizer, config.vocab_size, lambda: self.sides("train"), self.folder
        )

    def sides(self, split: str) -> tuple[Source, Source]:
        """The texts of a split to read from, and those to write, in the same order. With `validation_source`
        all of `source` is for training, and validation and test are that one's."""
        c = self.config
        held_out = split != "train" and c.validation_source
        with naming("validation_source" if held_out else "source"):
            name = c.validation_source if held_out else c.source
            options: dict[str, Any] = {"divide": not c.validation_source, "cache_dir": c.cache_dir}
            first, second = (
                Joined([open_source(name, split, field=field, **options) for field in fields.split(",")])
                for fields in (c.source_field, c.target_field)
            )
        return first, second

    def rows(self, split: str) -> PackedPairs:
        """The packed rows of a split, tokenised first where that was never done."""
        c = self.config
        sources, targets = (TokenCache.of(side, self.tokenizer, self.folder) for side in self.sides(split))
        with naming("too_long"):
            return self._packing(sources, targets, c.source_length, c.target_length, c.too_long)

    def loader(self, split: str, batch_size: int, **options) -> Loader:
        """Batches of a split; `options` are those of `Loader`."""
        return Loader(self.rows(split), batch_size, workers=self.config.workers, **options)

    def texts(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs of a split as they are, without those that have an empty side."""
        sides = self.sides(split)
        for index in range(len(sides[0])):
            first, second = ("".join(side.pieces(index)) for side in sides)
            if first.strip() and second.strip():
                yield first, second

    def encode_source(self, text: str) -> list[int]:
        """The tokens that a model reads of a source, its end among them."""
        return [*self.tokenizer.encode(text), self.tokenizer.eos_id]
