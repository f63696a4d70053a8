"""The TFDS builder of the embedded corpus; a module of its own because TFDS takes a while to import."""

from collections.abc import Iterator

import tensorflow_datasets as tfds

from transformer.data.sources.base import SPLITS
from transformer.data.sources.standard_library import fingerprint, in_split, library_files


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
