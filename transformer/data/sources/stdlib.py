"""The embedded corpus: the Python standard library's own source text, real and there wherever Python is."""

import functools
import sysconfig
from collections.abc import Sequence
from typing import Any

from transformer.data.sources.base import Options, Source
from transformer.data.sources.standard_library import fingerprint, library_files
from transformer.data.sources.tfds import prepared
from transformer.errors import UserError


class StandardLibrary(Source):
    """`stdlib`: one document a file, with its `path`; prepared by TFDS as `python_standard_library`.

    Raises:
      UserError: there is an argument, where none is known, or another field than text or path.
    """

    def __init__(self, argument: str, split: str, options: Options) -> None:
        if argument:
            raise UserError(f"stdlib:{argument}: stdlib takes no argument")
        if options.field not in ("text", "path"):
            raise UserError(f"stdlib: no field {options.field!r}; fields there: text, path")
        if not library_files():
            raise UserError(f"stdlib: this Python came without source text in {sysconfig.get_path('stdlib')}")
        self.name = f"stdlib ({split})"
        self.field = options.field
        self._split = split
        self._folder = options.folder / "tfds"
        self.identity = f"stdlib {fingerprint()} {split} {self.field}"

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {key: value.decode() for key, value in self._records[index].items()}

    @functools.cached_property
    def _records(self) -> Sequence[dict[str, bytes]]:
        from transformer.data.sources.standard_library_builder import PythonStandardLibrary

        make = functools.partial(
            PythonStandardLibrary, config=fingerprint(), data_dir=self._folder, file_format="array_record"
        )
        return prepared(make, show=False).as_data_source(split=self._split)
