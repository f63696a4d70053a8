"""What `--input` names: texts one a line, as predict reads them, or a source as a config names one."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.errors import UserError

KINDS = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv"}
"""What a file is by the end of its name, where a config could have it so."""

LOOKED_AT = 1000
"""Lines of a file by which it is judged whether they are columns of a table."""


@dataclass(frozen=True)
class Input:
    """Texts to be read from the first on, as often as is asked for.

    `count` and `digest`, of all of them, are None where they come as they are read (from a pipe, say).
    """

    texts: Callable[[], Iterator[str]]
    count: int | None = None
    digest: str | None = None


def is_source(text: str, data: Any) -> bool:
    """Whether it names a source, "tsv:my.tsv", and no file."""
    kind, colon, _ = text.partition(":")
    return kind in data.kinds and (bool(colon) or not Path(text).exists())


def as_source(text: str, data: Any) -> str:
    """The source that a file is, or the one that is named.

    Raises:
      UserError: there is no such file, or it is unknown what it is a file of.
    """
    if is_source(text, data):
        return text
    path, kinds = Path(text), ", ".join(data.kinds)
    if not path.is_file():
        raise UserError(f"--input: there is no file {text!r}; expected one, or a source: {kinds}")
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = KINDS.get(suffixes[-1] if suffixes else "", data.lines)
    if kind not in data.kinds:
        raise UserError(f"--input: {text}: in which form? expected KIND:{text}, of {kinds}")
    return f"{kind}:{text}"


def check_output(source: str | None, target: str | None) -> None:
    """Raises a `UserError` where the answers would go into the file that is read."""
    both = source and target and Path(target).exists() and Path(source).exists()
    if both and Path(str(source)).samefile(str(target)):
        raise UserError(f"--output: {target} is the input too")


def texts_of(prompt: str | None, source: str | None) -> Iterator[str]:
    """The prompt alone, or the lines of a file or of standard input as they come; there is one at least."""
    if prompt is not None:
        yield prompt
        return
    empty = True
    for line in lines(source):
        empty = False
        yield line
    if empty:
        raise UserError(f"--input: {source or 'standard input'} is empty; expected one text a line")


def open_input(prompt: str | None, source: str | None, experiment: Any) -> Input:
    """What is to be answered; a file, or a source, is read through and looked at before anything else.

    Raises:
      UserError: it is missing, empty or no text, or plainly not what the run answers.
    """
    if prompt is not None or source is None or _special(source):
        return Input(lambda: texts_of(prompt, source))
    data = experiment.data
    if is_source(source, data):
        return _counted(lambda: data.inputs(f"test of {source}"), source)
    if data.lines == "tsv":
        _look_for_columns(source, data)
    found = _counted(lambda: lines(source), source)
    for number, text in enumerate(lines(source), 1):
        if problem := experiment.problem(text):
            raise UserError(f"--input: {source}:{number} {problem}")
    return found


def lines(source: str | None) -> Iterator[str]:
    """The lines of a file, or of standard input, without their ends; a byte that is not UTF-8 is an error of
    its line."""
    name = source or "standard input"
    if source and not Path(source).exists():
        raise UserError(f"--input: there is no file {source!r}")
    if source and Path(source).is_dir():
        raise UserError(f"--input: {source} is a folder; expected a file")
    if not source and sys.stdin.isatty():
        print("Reading one text a line from the keyboard; Ctrl-D ends.", file=sys.stderr)
    try:
        with open(source or 0, encoding="utf-8", errors="surrogateescape", closefd=bool(source)) as stream:
            for number, line in enumerate(stream, 1):
                try:
                    line.encode()
                except UnicodeEncodeError:
                    raise UserError(f"--input: {name}:{number} is not UTF-8") from None
                yield line.rstrip("\r\n")
    except OSError as error:
        raise UserError(f"--input: {name}: {error.strerror}") from None


def _special(source: str) -> bool:
    """Whether it is a pipe, say, which can be read once only."""
    path = Path(source)
    return path.exists() and not path.is_file() and not path.is_dir()


def _counted(texts: Callable[[], Iterator[str]], name: str) -> Input:
    """What `texts` gives, of which there is one at least."""
    found, count = hashlib.blake2b(digest_size=16), 0
    for text in texts():
        found.update(text.encode() + b"\n")
        count += 1
    if not count:
        raise UserError(f"--input: {name} is empty; expected one text a line")
    return Input(texts, count, found.hexdigest())


def _look_for_columns(source: str, data: Any) -> None:
    """Refuses a table given as texts one a line, of which all columns would be read as the text."""
    first = [line.split("\t") for _, line in zip(range(LOOKED_AT), lines(source), strict=False)]
    rows = [columns for columns in first if any(columns)]
    if not rows:
        return
    fields, reads = list(data.fields("test")), list(data.reads)
    table = f"--input=tsv:{source}"
    named = [name for name in rows[0] if name.strip(' "\ufeff') in fields]
    if named and len(rows[0]) > 1:
        header = ", ".join(rows[0])
        raise UserError(f"--input: {source}:1 is a header ({header}); {table} reads its columns by name")
    if named:
        print(
            f"{source}:1 is {rows[0][0]!r}; if that is a header, remove it, or give {table}", file=sys.stderr
        )
    expected = len(reads) if hasattr(data, "labels") else 1
    counts = {len(columns) for columns in rows}
    if hasattr(data, "labels"):
        labels = set(data.labels)
        for place, what in ((-1, "last"), (0, "first")):
            if min(counts) > expected and all(columns[place].strip() in labels for columns in rows):
                raise UserError(
                    f"--input: {source}: the {what} column of every line is a label; give the texts alone, "
                    f"or a table with a header: {table}"
                )
    elif len(counts) == 1 and counts != {1}:
        raise UserError(
            f"--input: {source}: every line has {counts.pop()} columns; expected sources alone, one a line; "
            f"of a table {table} reads them"
        )
    if many := sum(len(columns) > expected for columns in rows):
        print(
            f"{source}: {many:,} of {_first(rows)} lines have tabs, read as part of the text", file=sys.stderr
        )
    if few := sum(len(columns) < expected for columns in rows):
        print(f"{source}: {few:,} of {_first(rows)} lines have no tab before a second text", file=sys.stderr)


def _first(rows: Iterable[Any]) -> str:
    count = len(list(rows))
    return f"the first {count:,}" if count == LOOKED_AT else f"{count:,}"
