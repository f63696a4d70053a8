"""The base class of files that are read once to find their records."""

import functools
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from transformer.data.disk_cache import build_once, digest, load_array
from transformer.data.sources.base import belong, shares, tallied
from transformer.data.sources.files import Files
from transformer.json_text import parse_json


class RecordFiles(Files):
    """Files whose records are found by numbers, such as the bytes at which a line starts and ends.

    Records are split by their fields `Options.key`, or by all that is read of them (see `belong`). That takes
    reading all of them, so their numbers and the hashes of their keys are cached, for all splits and fields.
    """

    def __len__(self) -> int:
        return len(self._found)

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
            return self._find_all()
        given = self._options
        what = sorted(given.asked), sorted(given.optional), given.rule
        key = digest("records", type(self).__name__, self._stats, *what)
        folder = build_once(given.folder / "records" / key, self._write)
        of_split_n = belong(self._split, load_array(folder / "shares.npy"))
        tally = parse_json((folder / "tally.json").read_bytes())
        return load_array(folder / "found.npy")[of_split_n], tally

    def _write(self, folder: Path) -> None:
        found, tally = self._find_all()
        keys = tqdm(
            self._keys(found), f"dividing {self.name}", len(found), delay=2, leave=False, dynamic_ncols=True
        )
        np.save(folder / "shares.npy", shares(keys))
        np.save(folder / "found.npy", found)
        (folder / "tally.json").write_text(json.dumps(tally))

    def _find_all(self) -> tuple[np.ndarray, Mapping[str, int]]:
        found, left_out = self._find()
        return found, tallied(len(found), left_out)

    @abstractmethod
    def _find(self) -> tuple[np.ndarray, Mapping[str, int]]:
        """The numbers (n, k) by which the records of all splits are found, and reason -> how many others are
        left out."""

    @abstractmethod
    def _keys(self, found: np.ndarray) -> Iterable[bytes]:
        """The keys by which the records with these numbers are split."""
