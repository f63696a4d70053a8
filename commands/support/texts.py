"""Input texts and output files of commands, which can be continued after an interruption."""

import contextlib
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax

from commands.support.columns import look_for_columns, named_source
from transformer.data.corpus import tally_lines
from transformer.data.sources.packed_files import PACKED, SAMPLE, WINDOWS, reading, refuse_binary
from transformer.errors import UserError
from transformer.json_text import parse_json
from workdir.lock import try_lock

NOTED_EVERY = 1.0
"""Seconds between notes of the progress: a killed program repeats at most the answers of this time."""


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
    both = source and target and Path(target).exists() and Path(source).exists()
    if both and Path(str(source)).samefile(str(target)):
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
    if named := named_source(source, data):
        tally = data.asked(f"test of {named}")[0].tally
        for line in tally_lines({named: tally} if len(tally) > 1 else {}):
            print(line, file=sys.stderr)
        return _counted(lambda: data.inputs(f"test of {named}"), source)
    if data.lines == "tsv":
        look_for_columns(source, lines(source), data)
    found = _counted(lambda: lines(source), source)
    for number, text in enumerate(lines(source), 1):
        if problem := experiment.problem(text):
            raise UserError(f"--input: {source}:{number} {problem}")
    return found


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
    found, count = hashlib.blake2b(digest_size=16), 0
    for text in texts():
        found.update(text.encode() + b"\n")
        count += 1
    if not count:
        raise UserError(f"--input: {name} is empty; expected one text per line")
    return Input(texts, count, found.hexdigest())


class Answers:
    """A stream of answers, and the number of answered texts."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.done = stream, 0

    def write(self, answers: Sequence[str]) -> None:
        """Writes the answers to one text, a line each."""
        self.stream.write("".join(answer + "\n" for answer in answers))
        self.stream.flush()
        self.done += 1


class ResumableAnswers(Answers):
    """Answers in a file, with a note beside it of their progress and their input, `of`."""

    def __init__(self, stream: TextIO, note: Path, of: Mapping[str, Any], done: int) -> None:
        """Continues after the answers to the first `done` texts."""
        self.stream, self.done, self._note, self._of = stream, done, note, of
        self._noted = time.monotonic()

    def write(self, answers: Sequence[str]) -> None:
        """Writes the answers to one text, a line each."""
        self.stream.write("".join(answer + "\n" for answer in answers))
        self.done += 1
        if time.monotonic() - self._noted > NOTED_EVERY:
            self.note()

    def note(self) -> None:
        """Flushes the answers to the disk, then notes their number."""
        self.stream.flush()
        said = {"of": self._of, "texts": self.done, "bytes": os.fstat(self.stream.fileno()).st_size}
        part = self._note.with_name(self._note.name + ".new")
        part.write_text(json.dumps(said))
        os.replace(part, self._note)
        self._noted = time.monotonic()


Writing = AbstractContextManager[Answers]


def writing(target: str | None, of: Mapping[str, Any] | None = None, flag: str = "--output") -> Writing:
    """Answers to standard output, or to a file that appears when all are written; only the first process
    writes. `flag` is that of the file, for messages.

    Until then they are in TARGET.part. With `of`, which identifies the input and the model, an interrupted
    command leaves this file and a note of its progress, TARGET.part.json; the same command continues it
    (`done` counts the answered texts).

    Raises:
      UserError: TARGET.part exists and has answers to another input.
    """
    if jax.process_index() != 0:
        target = os.devnull
    if not target:
        return contextlib.nullcontext(Answers(sys.stdout))
    path = Path(target)
    if path.exists() and not path.is_file():  # a pipe or /dev/null
        return _to_special(path, flag)
    return _to_file(path, flag) if of is None else _resuming(path, of, flag)


@contextlib.contextmanager
def _to_special(path: Path, flag: str) -> Iterator[Answers]:
    with _open(path, "w", path, flag) as stream:
        yield Answers(stream)


@contextlib.contextmanager
def _to_file(path: Path, flag: str) -> Iterator[Answers]:
    part = path.with_name(path.name + ".part")
    with _alone(part, path, flag) as stream:
        if os.fstat(stream.fileno()).st_size:
            raise _of_another(part, flag)
        try:
            yield Answers(stream)
            stream.flush()
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        os.replace(part, path)


@contextlib.contextmanager
def _resuming(path: Path, of: Mapping[str, Any], flag: str) -> Iterator[Answers]:
    part, note = (path.with_name(path.name + end) for end in (".part", ".part.json"))
    there = part.exists()
    with _alone(part, path, flag) as stream:
        done, size = _left(part, note, of, flag) if there else (0, 0)
        answers = ResumableAnswers(stream, note, of, done)
        try:
            stream.truncate(size)
            try:
                answers.note()
                yield answers
            finally:
                answers.note()
        except BaseException as error:
            if not answers.done or isinstance(error, UserError):  # another input will be given
                part.unlink(missing_ok=True)
                note.unlink(missing_ok=True)
            else:
                said = f"{answers.done:,} texts are answered in {part}; the same command continues from there"
                print(said, file=sys.stderr, flush=True)
            raise
        os.replace(part, path)
        note.unlink(missing_ok=True)


def _left(part: Path, note: Path, of: Mapping[str, Any], flag: str) -> tuple[int, int]:
    """The number of texts that an interrupted command has answered in `part`, and the size up to there."""
    try:
        said = parse_json(note.read_bytes())
        same, done, size = said["of"] == json.loads(json.dumps(of)), int(said["texts"]), int(said["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        same, done, size = False, 0, 0
    if not same or part.stat().st_size < size:
        raise _of_another(part, flag)
    return done, size


def _of_another(part: Path, flag: str) -> UserError:
    return UserError(
        f"{flag}: {part} is there, of another input, model or flags; move it away, or give them again"
    )


@contextlib.contextmanager
def _alone(part: Path, target: Path, flag: str) -> Iterator[TextIO]:
    """The file `part`, to append to, which no other command writes meanwhile.

    Raises:
      UserError: another command writes it, or it cannot be written.
    """
    with _open(part, "a", target, flag) as stream:
        if not try_lock(stream, part):
            raise UserError(f"{flag}: {part} is being written by another command; choose another file")
        yield stream


def _open(path: Path, mode: str, target: Path, flag: str) -> TextIO:
    try:
        return path.open(mode, encoding="utf-8", errors="surrogateescape")  # type: ignore[return-value]
    except OSError as error:
        raise UserError(f"{flag}: {target}: {error.strerror}") from None


def one_line(text: str) -> str:
    """The text with line breaks as \\\\n and backslashes as \\\\\\\\."""
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
