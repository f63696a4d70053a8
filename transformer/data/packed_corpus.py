"""The base class of data whose packing may leave out or truncate records."""

from collections.abc import Iterator
from typing import Any

from transformer.data.corpus import Corpus
from transformer.data.division import tally_lines


class PackedCorpus(Corpus):
    """Data whose rows have a `tally` of the records that are packed, truncated and left out."""

    def packings(self, split: str) -> Iterator[tuple[str, Any]]:
        """The name and the rows of each part of a split that is packed by itself."""
        yield self.sources(split)[0].name, self.rows(split)

    def tallies(self, *splits: str) -> dict[str, dict[str, int]]:
        """As for `Corpus`, and of rows that leave out or truncate something."""
        packed = {name: rows.tally for split in splits for name, rows in self.packings(split)}
        return super().tallies(*splits) | {name: tally for name, tally in packed.items() if len(tally) > 1}

    def division(self) -> list[str]:
        """As for `Corpus`; packing is counted whatever the source."""
        return tally_lines(self.tallies("train", "validation")) if self.apart else super().division()
