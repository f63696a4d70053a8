"""The embedded corpus: the source text of Python's standard library, as a TFDS builder.

Real text that is there wherever Python is, without a download. This module imports TFDS, which takes a
second: import it where it is needed.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds

LEFT_OUT = frozenset(
    {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "lib2to3",
        "ensurepip",
        "_vendor",
        "__pycache__",
    }
)
"""Folders of tests, of installed or vendored packages and of generated files."""


class PythonStandardLibrary(tfds.core.GeneratorBasedBuilder):
    """One example per file of the standard library of the running Python: its `path` and its `text`.

    A file's split is a function of its path, 90 % train, 5 % validation, 5 % test, so that it stays where it
    is from one machine, and one Python, to another. The version is Python's own.
    """

    VERSION = tfds.core.Version("{}.{}.{}".format(*sys.version_info[:3]))

    def _info(self) -> tfds.core.DatasetInfo:
        features = {"path": tfds.features.Text(), "text": tfds.features.Text()}
        return tfds.core.DatasetInfo(
            builder=self,
            description="Source files of the Python standard library, without its tests.",
            features=tfds.features.FeaturesDict(features),
            homepage="https://docs.python.org/3/library/",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        return {split: self._generate_examples(split) for split in ("train", "validation", "test")}

    def _generate_examples(self, split: str) -> Iterator[tuple[str, dict[str, str]]]:
        root = Path(sysconfig.get_path("stdlib"))
        for file in sorted(root.rglob("*.py")):
            path = file.relative_to(root)
            if LEFT_OUT.isdisjoint(path.parts) and split_of(path.as_posix()) == split:
                text = file.read_text(encoding="utf-8", errors="replace")
                if text.strip():
                    yield path.as_posix(), {"path": path.as_posix(), "text": text}


def split_of(path: str) -> str:
    """The split of a file, from a hash of its path alone."""
    place = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") / 2**64
    return "train" if place < 0.90 else "validation" if place < 0.95 else "test"
