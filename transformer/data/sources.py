"""Where text comes from: the embedded corpus, the user's files, TFDS; each a `Source` of documents."""

import contextlib
import dataclasses
import difflib
import glob
import gzip
import hashlib
import io
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from transformer.errors import UserError

SPLITS = ("train", "validation", "test")
SHARES = {"train": (0.0, 0.90), "validation": (0.90, 0.95), "test": (0.95, 1.0)}
"""The part of an undivided set that each split is."""
DOCUMENTS = ("file", "paragraph", "line")


class Source(Protocol):
    """Documents by index, and a name for their content that changes when the content does."""

    identity: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> str: ...


@dataclasses.dataclass(frozen=True)
class Request:
    """Which documents of a source: `argument` is what follows the colon of its name."""

    argument: str
    split: str
    field: str
    document: str
    cache_dir: Path


@dataclasses.dataclass
class Documents:
    """A source whose texts are made when first asked for, so that naming one costs nothing."""

    identity: str
    load: Callable[[], Any]

    def __post_init__(self) -> None:
        self._texts: Any = None

    def _all(self) -> Any:
        if self._texts is None:
            self._texts = self.load()
        return self._texts

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: int) -> str:
        return self._all()[index]


def open_source(
    name: str, split: str, *, field: str = "text", document: str = "file", cache_dir: str | os.PathLike = ""
) -> Source:
    """The documents of `split` of the source called `name`: `stdlib`, `text:GLOB`, `jsonl:GLOB`, `tfds:NAME`.

    `text:` reads plain or .gz files of UTF-8; a document is a file, a paragraph (up to an empty line) or a
    line. `jsonl:` reads the string `field` of each line's object. Files have no splits of their own: one
    document alone is divided by position, 90/5/5 % at line ends; two or more by a hash of each, in the same
    shares. A file or folder name with "train", "valid", "dev" or "test" has no special meaning: use
    `data.validation_source`.

    Raises:
      UserError: an unknown source, missing, unreadable or empty files, a field that is not there.
    """
    kind, _, argument = name.partition(":")
    if kind not in SOURCES:
        valid = "stdlib, text:GLOB, jsonl:GLOB, tfds:NAME"
        raise UserError(f"data.source: {name!r} is no source; expected one of {valid}")
    if document not in DOCUMENTS:
        raise UserError(f"data.document: {document!r}; expected one of {', '.join(DOCUMENTS)}")
    if split not in (*SPLITS, "all"):
        raise UserError(f"split: {split!r}; expected one of {', '.join(SPLITS)}")
    return SOURCES[kind](Request(argument, split, field, document, data_folder(cache_dir)))


def data_folder(cache_dir: str | os.PathLike = "") -> Path:
    """Where prepared data lies: `cache_dir`, or `transformer` in the user's cache folder."""
    if cache_dir:
        return Path(cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "transformer"


def _standard_library(request: Request) -> Source:
    if request.argument:
        raise UserError(f"data.source: 'stdlib:{request.argument}'; stdlib takes no argument")

    def load() -> Any:
        from transformer.data.standard_library import PythonStandardLibrary

        builder = PythonStandardLibrary(data_dir=str(request.cache_dir / "tfds"), file_format="array_record")
        return _Decoded(_prepared(builder, request.split), "text")

    return Documents(f"stdlib {platform.python_version()} {request.split}", load)


def _tfds(request: Request) -> Source:
    with _quiet():
        import tensorflow_datasets as tfds

        try:
            builder = tfds.builder(
                request.argument, data_dir=str(request.cache_dir / "tfds"), file_format="array_record"
            )
        except tfds.core.registered.DatasetNotFoundError:
            near = difflib.get_close_matches(request.argument, tfds.list_builders(), n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UserError(f"data.source: TFDS has no data set {request.argument!r}{hint}") from None
        except ImportError as error:
            raise _needs(request.argument, error) from error
    features = builder.info.features or {}
    if request.field not in features:
        raise UserError(
            f"data.text_field: {request.field!r} is no feature of {request.argument}; it has {', '.join(features)}"
        )

    def load() -> Any:
        return _Decoded(_prepared(builder, request.split), request.field)

    return Documents(f"tfds {builder.info.full_name} {request.split} {request.field}", load)


def _prepared(builder: Any, split: str) -> Any:
    with _quiet():
        try:
            builder.download_and_prepare()
        except ImportError as error:
            raise _needs(builder.name, error) from error
        except OSError as error:
            raise UserError(f"data.source: {builder.name} could not be prepared: {_line(error)}") from error
        there = list(builder.info.splits)
        if split not in there:
            raise UserError(f"data.source: {builder.name} has no split {split!r}; it has {', '.join(there)}")
        return builder.as_data_source(split)


def _needs(name: str, error: ImportError) -> UserError:
    package = {"tensorflow": "tensorflow-cpu"}.get(error.name or "", error.name or "tensorflow-cpu")
    return UserError(
        f"data.source: TFDS needs {error.name or 'TensorFlow'} to download and prepare {name!r}: "
        f"`pip install {package}` once, here or on another machine with the same data folder"
    )


class _Decoded:
    """The text feature of a TFDS data source, whose strings are bytes."""

    def __init__(self, examples: Any, field: str) -> None:
        self._examples, self._field = examples, field

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> str:
        value = self._examples[index][self._field]
        return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _text(request: Request) -> Source:
    files = _files("text", request.argument)

    def load() -> list[str]:
        texts = [_read(file) for file in files]
        if request.document != "file":
            pieces = str.splitlines if request.document == "line" else _paragraphs
            texts = [piece for text in texts for piece in pieces(text)]
        return _divided([text for text in texts if text.strip()], request.split, f"text:{request.argument}")

    return Documents(f"text {_stamp(files)} {request.document} {request.split}", load)


def _jsonl(request: Request) -> Source:
    files = _files("jsonl", request.argument)

    def load() -> list[str]:
        texts = [text for file in files for text in _records(file, request.field)]
        return _divided([text for text in texts if text.strip()], request.split, f"jsonl:{request.argument}")

    return Documents(f"jsonl {_stamp(files)} {request.field} {request.split}", load)


SOURCES: dict[str, Callable[[Request], Source]] = {
    "stdlib": _standard_library,
    "text": _text,
    "jsonl": _jsonl,
    "tfds": _tfds,
}


def _files(kind: str, pattern: str) -> list[Path]:
    if not pattern:
        raise UserError(f"data.source: '{kind}:' names no file; expected {kind}:/path/to/files")
    found = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
    files = [Path(name) for name in found if os.path.isfile(name)]
    if not files:
        raise UserError(f"data.source: {pattern}: there is no such file")
    return files


def _stamp(files: list[Path]) -> str:
    """Changes when a file is added, removed, replaced or rewritten."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _read(file: Path) -> str:
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise UserError(f"data.source: {file}: cannot be read: {_line(error)}") from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{raw[error.start]:02x}"
        raise UserError(f"data.source: {file}:{line}: {found} at offset {error.start} is not UTF-8") from None


def _records(file: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(io.StringIO(_read(file)), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"data.source: {file}:{number}: not JSON: {error.msg}, column {error.colno}"
            ) from None
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            there = ", ".join(record) if isinstance(record, dict) else type(record).__name__
            raise UserError(f"data.text_field: {file}:{number} has no text {field!r}; it has {there}")
        yield record[field]


def _paragraphs(text: str) -> list[str]:
    return [part for part in text.replace("\r\n", "\n").split("\n\n") if part.strip()]


def _divided(texts: list[str], split: str, name: str) -> list[str]:
    if not texts:
        raise UserError(f"data.source: {name} holds no text")
    if split == "all":
        return texts
    low, high = SHARES[split]
    if len(texts) == 1:
        lines = texts[0].splitlines(keepends=True)
        part = "".join(lines[round(low * len(lines)) : round(high * len(lines))])
        chosen = [part] if part.strip() else []
    else:
        chosen = [text for text in texts if low <= _place(text) < high]
    if not chosen:
        raise UserError(f"data.source: {name} is too small for a {split} split; give data.validation_source")
    return chosen


def _place(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TFDS without its progress bars and log lines."""
    import absl.logging

    before = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    logging.getLogger("tensorflow_datasets").setLevel(logging.ERROR)
    try:
        import tensorflow_datasets as tfds

        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        absl.logging.set_verbosity(before)
