"""Input texts of commands."""

import hashlib
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.support.columns import look_for_columns, named_source
from transformer.data.division import tally_lines
from transformer.data.sources.packed_files import PACKED, SAMPLE, WINDOWS, reading, refuse_binary
from transformer.errors import UserError


@dataclass(frozen=True)
class Input:
    """Input texts, which can be iterated repeatedly.

    `count` and `digest` are those of all texts, or None if the texts are streamed, as from a pipe.
    """

    texts: Callable[[], Iterator[str]]
    count: int | None = None
    digest: str | None = None


def check_files(prompt: str | None, source: str | None, target: str | None) -> None:
    """Checks the flags.

    Raises:
      UserError: there are two inputs, or the output is the input.
    """
    if prompt is not None and source is not None:
        raise UserError("--input: --prompt is given too; give one of them")
    exist = source and target and Path(target).exists() and Path(source).exists()
    if exist and Path(str(source)).samefile(str(target)):
        raise UserError(f"--output: {target} is the input too")


def texts_of(prompt: str | None, source: str | None) -> Iterator[str]:
    """The prompt, or the lines of a file or of standard input as they are read; at least one."""
    if prompt is not None:
        yield prompt
        return
    empty = True
    for line in lines(source):
        empty = False
        yield line
    if empty:
        raise UserError(f"--input: {source or 'standard input'} is empty; expected one text per line")


def open_input(source: str | None, experiment: Any) -> Input:
    """The input texts; a file or a source is read and checked as a whole first.

    Raises:
      UserError: it is missing, empty, not text, or not valid input of the experiment.
    """
    if source is None or _special(source):
        return Input(lambda: texts_of(None, source))
    data = experiment.data
    if table := named_source(source, data):
        tally = data.asked(f"test of {table}")[0].tally
        for line in tally_lines({table: tally} if len(tally) > 1 else {}):
            print(line, file=sys.stderr)
        return _counted(lambda: data.inputs(f"test of {table}"), source)
    if data.lines == "tsv":
        look_for_columns(source, lines(source), data)
    texts = _counted(lambda: lines(source), source)
    for number, text in enumerate(lines(source), 1):
        if problem := experiment.problem(text):
            raise UserError(f"--input: {source}:{number} {problem}")
    return texts


def lines(source: str | None) -> Iterator[str]:
    """The lines of a file, packed if it has a suffix of `PACKED`, or of standard input, as data sources read
    them: only a line feed ends a line, carriage returns before it and a byte-order mark at the beginning are
    left out.

    Raises:
      UserError: it is missing, damaged or binary, or a line, whose number is given, is not UTF-8.
    """
    name = source or "standard input"
    if source and not Path(source).exists():
        raise UserError(f"--input: there is no file {source!r}")
    if source and Path(source).is_dir():
        raise UserError(f"--input: {source} is a folder; expected a file")
    if not source and sys.stdin.isatty():
        print("Reading one text per line from the keyboard; Ctrl-D ends.", file=sys.stderr)
    try:
        path = Path(name)
        packed = path.suffix.lower() in PACKED
        with reading(path) if packed else open(source or 0, "rb", closefd=bool(source)) as stream:
            if source and not _special(source):
                refuse_binary(stream.peek(SAMPLE), path)
            for number, line in enumerate(stream, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(
            f"--input: {name}:{number} is not UTF-8; {WINDOWS.format(shlex.quote(name))}"
        ) from None
    except UserError as error:
        raise UserError(f"--input: {error}") from None
    except OSError as error:
        raise UserError(f"--input: {name}: {error.strerror}") from None


def _special(source: str) -> bool:
    """Whether the file is a pipe or similar, which can be read only once."""
    path = Path(source)
    return path.exists() and not path.is_file() and not path.is_dir()


def _counted(texts: Callable[[], Iterator[str]], name: str) -> Input:
    """The non-empty input `texts`, with count and digest."""
    state, count = hashlib.blake2b(digest_size=16), 0
    for text in texts():
        state.update(text.encode() + b"\n")
        count += 1
    if not count:
        raise UserError(f"--input: {name} is empty; expected one text per line")
    return Input(texts, count, state.hexdigest())


def one_line(text: str) -> str:
    """The text with line breaks as \\\\n and backslashes as \\\\\\\\."""
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
