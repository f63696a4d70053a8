"""The base class of files that are read once to find their records."""

import functools
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from transformer.data.cache.disk_cache import build_once, digest, load_array, load_values
from transformer.data.sources.base import tallied
from transformer.data.sources.files import Files
from transformer.data.sources.record_splits import belong, shares

Block = tuple[np.ndarray, Callable[[], Sequence[bytes]]]
"""The numbers (n, k) by which some records are found, and a function that reads the keys (n) by which these
are split."""


class RecordFiles(Files):
    """Files whose records are found by numbers, such as the bytes at which a line starts and ends.

    Records are split by their fields `Options.key`, or by all that is read of them (see `belong`). That takes
    reading all of them, so their numbers and the hashes of their keys are cached, for all splits and fields.
    """

    _width = 3
    """The number of integers by which a record is found: its file, its start and its end."""

    def __len__(self) -> int:
        return len(self._found)

    def place(self, index: int) -> str:
        """The file of a record and its line."""
        file, start, _ = self._found[index].tolist()
        return self._place(file, start)

    @functools.cached_property
    def tally(self) -> Mapping[str, int]:  # type: ignore[override]
        """See `Source`."""
        return self._found_and_tally[1]

    @property
    def _found(self) -> np.ndarray:
        """The numbers (n, k) by which the records of the split are found."""
        return self._found_and_tally[0]

    @functools.cached_property
    def _found_and_tally(self) -> tuple[np.ndarray, Mapping[str, int]]:
        if not self._options.divide:
            found_nk, tally, _ = self._read_blocks(with_shares=False)
            return found_nk, tally
        options = self._options
        settings = sorted(options.asked), sorted(options.optional), options.rule
        version = [self.version] if self.version else []
        key = digest("records", type(self).__name__, self._stats, *settings, *version)
        folder = build_once(options.folder / "records" / key, self._write)
        of_split_n = belong(self._split, load_array(folder / "shares.npy"))
        tally = load_values(folder / "tally.json")
        return load_array(folder / "found.npy")[of_split_n], tally

    def _write(self, folder: Path) -> None:
        found_nk, tally, shares_n = self._read_blocks(with_shares=True)
        np.save(folder / "shares.npy", shares_n)
        np.save(folder / "found.npy", found_nk)
        (folder / "tally.json").write_text(json.dumps(tally))

    def _read_blocks(self, with_shares: bool) -> tuple[np.ndarray, Mapping[str, int], np.ndarray]:
        """The numbers (n, k) by which the records of all splits are found, what is `tallied`, and the
        `shares` (n,) of their keys, or none."""
        blocks, shares_n, left_out = [np.zeros((0, self._width), np.int64)], [np.zeros(0)], Counter[str]()
        with tqdm(
            desc=f"reading {self.name}", unit=" records", delay=2, leave=False, dynamic_ncols=True
        ) as bar:
            for block_nk, keys in self._blocks(left_out):
                blocks.append(block_nk)
                if with_shares and len(block_nk):
                    shares_n.append(shares(keys()))
                bar.update(len(block_nk))
        found_nk = np.concatenate(blocks)
        return found_nk, tallied(len(found_nk), left_out), np.concatenate(shares_n)

    @abstractmethod
    def _blocks(self, left_out: Counter[str]) -> Iterator[Block]:
        """The records of all splits in order, in blocks that fit in memory. Adds to `left_out`, reason ->
        count, the records that it leaves out."""
