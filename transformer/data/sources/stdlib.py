"""The embedded corpus: the Python standard library's own source text, real and there wherever Python is."""

import functools
import os
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer.data.disk_cache import digest
from transformer.data.sources.base import SPLITS, Options, Source, falls_in
from transformer.data.sources.tfds import prepared
from transformer.errors import UserError

LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "ensurepip", "_vendor"}
"""Folders of tests, of what is installed beside the library or vendored into it."""


@functools.cache
def library_files() -> dict[str, Path]:
    """By the path inside the library, every module that is the same on every machine of this Python."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(set(inside) - LEFT_OUT)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            files[path.relative_to(root).as_posix()] = path
    # These are written when Python is built, with the paths and the compiler of that machine.
    built = ("_sysconfigdata", "config-")
    return {name: path for name, path in files.items() if not name.startswith(built)}


@functools.cache
def fingerprint() -> str:
    """Names the version of Python and the selection made of its files; a patched library has another."""
    sizes = {name: path.stat().st_size for name, path in library_files().items()}
    return f"python-{platform.python_version()}-{digest(sizes, SPLITS)[:8]}"


def in_split(name: str, split: str) -> bool:
    """Whether the file is in the split: a hash of its name alone decides, on every machine alike."""
    return falls_in(split, f"python/{name}".encode())


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
        make = functools.partial(
            tfds_builder(), config=fingerprint(), data_dir=self._folder, file_format="array_record"
        )
        return prepared(make, show=False).as_data_source(split=self._split)


@functools.cache
def tfds_builder() -> type:
    """The TFDS builder of the corpus; TFDS takes a while to import, so it is imported where it is used."""
    import tensorflow_datasets as tfds

    class PythonStandardLibrary(tfds.core.GeneratorBasedBuilder):
        """The standard library's modules as `{"text", "path"}`; the running Python is the configuration."""

        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=fingerprint())]  # noqa: RUF012

        def _info(self) -> tfds.core.DatasetInfo:
            features = {"text": tfds.features.Text(), "path": tfds.features.Text()}
            return tfds.core.DatasetInfo(
                builder=self,
                description="Source text of the Python standard library, without its tests.",
                features=tfds.features.FeaturesDict(features),
                homepage="https://docs.python.org/3/library/",
            )

        def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
            return {split: self._generate_examples(split) for split in SPLITS}

        def _generate_examples(self, split: str) -> Iterator[tuple[str, dict[str, str]]]:
            for name, path in library_files().items():
                if in_split(name, split):
                    try:
                        text = path.read_bytes().decode()
                    except UnicodeDecodeError:  # a few modules declare another encoding
                        continue
                    yield name, {"text": text, "path": name}

    return PythonStandardLibrary
