"""Text data sets of TensorFlow Datasets, prepared and read as array_record, without TensorFlow.

TFDS is slow to import, so it is imported where it is used.
"""

import contextlib
import difflib
import functools
import io
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer.data.cache.disk_cache import digest, locked
from transformer.data.sources.base import SPLITS, Source
from transformer.data.sources.options import Options
from transformer.errors import UserError, first_line

RETRIES = 4
"""The number of further tries of a download, after 0.4, 0.8 ... seconds."""


class TfdsText(Source):
    """One split of a TFDS data set, `tfds:NAME`, `tfds:NAME/CONFIG` or `tfds:NAME:VERSION`, or of one that
    others prepared: in the folder `tfds:PATH/NAME/VERSION`, or in the folder TFDS_DATA_DIR.

    A missing validation or test split is replaced by 5 % from the end of the training split.

    Raises:
      UserError: no such data set, split or field, or the data set cannot be prepared.
    """

    def __init__(self, argument: str, split: str, options: Options) -> None:
        self.name = f"tfds:{argument} ({split})"
        self.field = options.field
        self._make = functools.partial(_builder, argument, options.folder / "tfds")
        info = self._make().info
        features = list(info.features or {})
        if self.field not in features:
            raise UserError(f"tfds:{argument}: no field {self.field!r}; fields there: {', '.join(features)}")
        self._split, self._features, self._numbers = split, info.features, options.numbers
        self.identity = f"tfds {info.full_name} {split} {self.field}{_given(argument)}"

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            record = self._records[index]
            record = {key: _text(value, self._features[key]) for key, value in record.items()}
        except Exception as error:  # array_record and TFDS have none of their own for damaged files
            raise UserError(f"{self.place(index)} is damaged ({_line(error)}); {self._again}") from error
        return record | {self.field: str(record[self.field])} if self._numbers else record

    @functools.cached_property
    def _records(self) -> Sequence[dict[str, Any]]:
        builder = _prepared(self._make)
        self._again = f"it is prepared again once {builder.data_path} is deleted"
        split = _slice(self.name, self._split, builder.info.splits)
        try:
            return builder.as_data_source(split=split)
        except Exception as error:
            raise UserError(f"{self.name}: its files are damaged ({_line(error)}); {self._again}") from error


def _prepared(make: Callable[[], Any]) -> Any:
    """The builder by `make`, with its data downloaded and prepared on first use, by one process at a time;
    TFDS shows its progress on standard error.

    Raises:
      UserError: the preparation needs a missing package or a network.
    """
    builder = make()
    if builder.data_path.exists():  # where TFDS puts it when it is complete
        return builder
    with locked(Path(builder.data_path)), _quiet(show=True):
        builder = make()  # a builder looks only once, when it is made, for what another process prepared
        try:
            with _few_retries():
                builder.download_and_prepare()
        except ImportError as error:
            raise _needs(builder.name, error.name) from None
        except Exception as error:
            raise UserError(f"tfds:{builder.name}: cannot be prepared; {_line(error)}") from error
    return builder


@contextlib.contextmanager
def _few_retries() -> Iterator[None]:
    """TFDS tries a host that cannot be reached ten times, which takes over three minutes; here it is a few
    seconds."""
    from tensorflow_datasets.core.download import downloader

    before = downloader.MAX_RETRIES
    downloader.MAX_RETRIES = RETRIES
    try:
        yield
    finally:
        downloader.MAX_RETRIES = before


def _builder(argument: str, folder: Path) -> Any:
    import tensorflow_datasets as tfds

    with _quiet(show=False):
        try:
            if _given(argument):
                return _random_access(tfds.builder_from_directory(Path(argument).expanduser()))
            if directory := os.environ.get("TFDS_DATA_DIR"):
                there = tfds.builder(argument, data_dir=directory)
                if there.data_path.exists():
                    return _random_access(there)
            return tfds.builder(argument, data_dir=folder, file_format="array_record")
        except UserError:
            raise
        except tfds.core.registered.DatasetNotFoundError:
            pass
        except ImportError as error:
            raise _needs(argument, error.name) from None
        except Exception as error:
            raise UserError(f"tfds:{argument}: {_line(error)}") from None
    # Without TensorFlow, TFDS does not register all that it has.
    has = {path.stem for path in Path(tfds.__file__).parent.glob("*/*")}
    name = argument.split("/")[0].split(":")[0]
    if name in has:
        raise _needs(argument, "tensorflow")
    near = difflib.get_close_matches(name, has.union(tfds.list_builders(with_community_datasets=False)), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "see tensorflow.org/datasets/catalog"
    raise UserError(f"tfds:{argument}: no such data set; {hint}")


def _given(argument: str) -> str:
    """A digest of the data set in a folder that others prepared; "" if the argument is a name."""
    info = Path(argument).expanduser() / "dataset_info.json"
    return f" {digest(info.read_text())}" if info.is_file() else ""


def _random_access(builder: Any) -> Any:
    """The builder of data that others prepared; raises `UserError` if these cannot be read by index."""
    if (kind := builder.info.file_format) is None or kind.value != "array_record":
        path, file_format = Path(builder.data_path), kind.value if kind else "an unknown format"
        new = path.parent.with_name(f"{path.parent.name}_array_record") / path.name
        flags = {"dataset_version_dir": path, "out_file_format": "array_record", "out_dir": new}
        convert = " ".join(f"--{name}={shlex.quote(str(value))}" for name, value in flags.items())
        remedy = f"convert it, `tfds convert_format {convert}`, and give tfds:{new}"
        raise UserError(f"tfds:{path}: prepared as {file_format}; {remedy}")
    return builder


def _slice(name: str, split: str, there: Any) -> str:
    """The name of the split in TFDS, with a slice if the data set lacks it."""
    missing = [held_out for held_out in ("validation", "test") if held_out not in there]
    if "train" not in there or split not in SPLITS:
        raise UserError(f"{name}: no split 'train'; splits there: {', '.join(there)}")
    end = 100 - 5 * len(missing)
    if split == "train":
        return "train" if end == 100 else f"train[:{end}%]"
    if split in missing:
        start = end + 5 * missing.index(split)
        return f"train[{start}%:{start + 5}%]"
    return split


def _needs(name: str, module: str | None) -> UserError:
    package = (module or "tensorflow").split(".")[0]
    return UserError(f"tfds:{name}: preparing it (once) needs {package}: `pip install {package}`")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _text(value: Any, feature: Any) -> Any:
    """Text as text, and a class by its name."""
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if value >= 0 else ""
    return _plain(value) if isinstance(value, dict | bytes) else value


def _plain(value: Any) -> Any:
    """Arrays inside a record, such as SQuAD's answers, as lists, and their bytes as text."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def _quiet(show: bool) -> Iterator[None]:
    """Keeps what TFDS prints out of standard output, where a program's answers go; logs errors only."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    to = sys.stderr if show else io.StringIO()
    try:
        with contextlib.redirect_stdout(to), contextlib.redirect_stderr(to):
            yield
    finally:
        logger.setLevel(level)
