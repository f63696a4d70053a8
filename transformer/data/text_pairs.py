"""Pairs of texts, a source and what is to be written from it: from a config's `data` group to batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from transformer.config import Bound
from transformer.data.corpus import Corpus, CorpusConfig, counted, naming
from transformer.data.disk_cache import digest
from transformer.data.pair_packing import JoinedPairs, PackedPairs
from transformer.data.sources import Source
from transformer.data.token_cache import TokenCache
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError


class Side(Source):
    """The texts of one field or of several fields of the same records, each of those on lines of its own.

    White space alone is no text, here for training and evaluation alike.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        self._parts = parts
        self.name = parts[0].name
        self.identity = digest("side", [part.identity for part in parts])

    def __len__(self) -> int:
        return len(self._parts[0])

    def __getitem__(self, index: int) -> dict[str, Any]:
        text = "\n".join(part.text(index) for part in self._parts)
        return {self.field: text if text.strip() else ""}

    @property
    def content(self) -> dict[str, Any]:
        """That of all fields."""
        return {name: content for part in self._parts for name, content in part.content.items()}

    def place(self, index: int) -> str:
        """Where the first field's record stands."""
        return self._parts[0].place(index)

    def alternatives(self, index: int) -> list[str]:
        """Those of a single field that has text; several fields together have one text."""
        several = len(self._parts) == 1 and self.text(index)
        return self._parts[0].alternatives(index) if several else [self.text(index)]


Length = Annotated[int, Bound("at least 2: a token and the end", 2)]


@dataclass(frozen=True)
class PairDataConfig(CorpusConfig):
    """Pairs of texts, packed into rows."""

    source: str = "written_forms"  # or tsv:GLOB, aligned:SOURCE,TARGET (two files), jsonl:GLOB, tfds:NAME
    source_field: str = "source"  # column, field or language of the source; several: question,context
    target_field: str = "target"  # the same of the target; of a list in jsonl the first is trained on
    reference_fields: str = ""  # further references for the metrics; all of a list count anyway
    source_length: Length = 128  # tokens of sources a row
    target_length: Length = 128  # tokens of targets a row
    too_long: Literal["cut", "skip", "refuse"] = "cut"  # pairs longer than a row (counted)


class PairData(Corpus):
    """The pairs of a config, whose sides share one tokenizer; raises as `Corpus` does."""

    config: PairDataConfig
    lines = "tsv"

    def __init__(
        self,
        config: PairDataConfig,
        tokenizer: Tokenizer | None = None,
        packing: Callable[..., PackedPairs] = PackedPairs,
    ) -> None:
        """`tokenizer`, a run folder's own, goes before what the config says; `packing` makes the rows."""
        super().__init__(config, tokenizer)
        self._packing = packing

    def fields(self, split: str) -> tuple[str, ...]:
        """Those of both sides, and of further references where the split is to have any."""
        c = self.config
        return *c.source_field.split(","), *c.target_field.split(","), *self._further(split)

    def sources(self, split: str) -> Sequence[Source]:
        """The texts of a split to read from, and those to write, in the same order."""
        sides = [self._side(split, fields) for fields in (self.config.source_field, self.config.target_field)]
        with naming(self.key(split)):
            first, second = map(len, sides)
            if first != second:
                found = f"{first:,} sources and {second:,} targets"
                raise UserError(f"{sides[0].name} has {found}; expected as many of each")
        return sides

    @property
    def reads(self) -> Sequence[str]:
        """The source's fields."""
        return self.config.source_field.split(",")

    def rows(self, split: str) -> Any:
        """The packed rows of a split, tokenised first where that was never done."""
        c = self.config
        sources, targets = (TokenCache.of(side, self.tokenizer, self.folder) for side in self.sources(split))
        with naming("too_long"):
            rows = self._packing(sources, targets, c.source_length, c.target_length, c.too_long)
        of_both = isinstance(rows, JoinedPairs) and rows.loss_on == "all"
        return counted(rows, [sources, targets] if of_both else [targets], split)

    def texts(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs of a split as they are, without those that `rows` leaves out."""
        return ((source, references[0]) for source, references in self.examples(split))

    def examples(self, split: str) -> Iterator[tuple[str, list[str]]]:
        """The same, with all that may be written from each source: its target first, then the further texts
        of its list, and those of `reference_fields`."""
        sources, targets = self.sources(split)
        further = [self._side(split, field) for field in self._further(split)]
        for index in range(len(sources)):
            source, target = sources.text(index), targets.text(index)
            if source and target and not (self.config.too_long == "skip" and self._too_long(source, target)):
                found = (each for side in (targets, *further) for each in side.alternatives(index))
                yield source, [text for text in found if text.strip()]

    def counted(self, split: str, sources: Sequence[str]) -> str:
        """How many of how many pairs these sources are, and what of the split is not read or left out."""
        c, total = self.config, sum(1 for _ in self.examples(split))
        said = [f"{len(sources):,} of {total:,} pairs"]
        if left_out := len(self.sources(split)[0]) - total:
            why = "is empty or too long" if c.too_long == "skip" else "is empty"
            said.append(f"{left_out:,} more left out: a side of theirs {why}")
        if cut := sum(len(self.encode_source(source)) > c.source_length for source in sources):
            said.append(f"{cut:,} with a source of more than {c.source_length} tokens: the rest is not read")
        return "; ".join(said)

    def inputs(self, split: str) -> Iterator[str]:
        """The sources of a split."""
        side = Side([self.open(split, field, fields=self.reads) for field in self.reads])
        return (side.text(index) for index in range(len(side)))

    def encode_source(self, text: str) -> list[int]:
        """The tokens that a model reads of a source, its end among them."""
        return [*self.tokenizer.encode(text), self.tokenizer.eos_id]

    def _side(self, split: str, fields: str) -> Source:
        return Side([self.open(split, field, lists=True) for field in fields.split(",")])

    def _further(self, split: str) -> list[str]:
        """The fields of further references, which a source that is only trained on need not have."""
        c = self.config
        trained = c.validation_source and self.key(split) == "source"
        return c.reference_fields.split(",") if c.reference_fields and not trained else []

    def _too_long(self, source: str, target: str) -> bool:
        encode, c = self.tokenizer.encode, self.config
        return len(encode(source)) >= c.source_length or len(encode(target)) >= c.target_length
