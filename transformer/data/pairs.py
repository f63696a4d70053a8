"""Pairs of texts, a source and what is to be written from it: from a config's `data` group to batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformer.data.corpus import Corpus, CorpusConfig, naming
from transformer.data.pair_packing import PackedPairs
from transformer.data.sources import Source
from transformer.data.storage import digest
from transformer.data.token_cache import TokenCache
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError


class Joined(Source):
    """The texts of several fields of the same records, each on lines of its own."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self._parts = parts
        self.name = parts[0].name
        self.identity = digest([part.identity for part in parts])

    def __len__(self) -> int:
        return len(self._parts[0])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {self.field: "\n".join(part.text(index) for part in self._parts)}


@dataclass(frozen=True)
class PairDataConfig(CorpusConfig):
    """Pairs of texts, packed into rows; `configs/base/` says what each key means."""

    source: str = "written_forms"
    source_field: str = "source"
    target_field: str = "target"
    source_length: int = 128
    target_length: int = 128
    too_long: Literal["cut", "skip", "refuse"] = "cut"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("source_length", "target_length"):
            if getattr(self, key) < 2:
                raise UserError(f"{key}: {getattr(self, key)}; expected at least 2: a token and the end")


class PairData(Corpus):
    """The pairs of a config, whose sides share one tokenizer; raises as `Corpus` does."""

    config: PairDataConfig

    def __init__(
        self,
        config: PairDataConfig,
        tokenizer: Tokenizer | None = None,
        packing: Callable[..., PackedPairs] = PackedPairs,
    ) -> None:
        """`tokenizer`, a run folder's own, goes before what the config says; `packing` makes the rows."""
        super().__init__(config, tokenizer)
        self._packing = packing

    @property
    def fields(self) -> tuple[str, ...]:
        """Those of both sides."""
        return *self.config.source_field.split(","), *self.config.target_field.split(",")

    def sources(self, split: str) -> Sequence[Source]:
        """The texts of a split to read from, and those to write, in the same order."""
        sides = [self._side(split, fields) for fields in (self.config.source_field, self.config.target_field)]
        with naming(self.key(split)):
            counts = [len(side) for side in sides]
        if counts[0] != counts[1]:
            first, second = counts
            raise UserError(
                f"data.{self.key(split)}: {sides[0].name} has {first:,} sources and {second:,} targets; "
                "expected as many of each"
            )
        return sides

    @property
    def reads(self) -> Sequence[str]:
        """The source's fields."""
        return self.config.source_field.split(",")

    def rows(self, split: str) -> PackedPairs:
        """The packed rows of a split, tokenised first where that was never done."""
        c = self.config
        sources, targets = (TokenCache.of(side, self.tokenizer, self.folder) for side in self.sources(split))
        with naming("too_long"):
            return self._packing(sources, targets, c.source_length, c.target_length, c.too_long)

    def texts(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs of a split as they are, without those that have an empty side."""
        sources, targets = self.sources(split)
        for index in range(len(sources)):
            source, target = sources.text(index), targets.text(index)
            if source.strip() and target.strip():
                yield source, target

    def encode_source(self, text: str) -> list[int]:
        """The tokens that a model reads of a source, its end among them."""
        return [*self.tokenizer.encode(text), self.tokenizer.eos_id]

    def _side(self, split: str, fields: str) -> Source:
        parts = [self.open(split, field) for field in fields.split(",")]
        return Joined(parts) if len(parts) > 1 else parts[0]
