"""Output files of commands, which appear when all answers are written. An interrupted one of answers to an
input is continued."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

import jax

from transformer.errors import UserError
from transformer.json_text import parse_json
from workdir.lock import try_lock

FLUSHED_EVERY = 1.0
"""Seconds between notes of the progress: a killed program repeats at most the answers of this time."""

Source = Mapping[str, Any]
"""Identifies the input and the model of answers."""


class Answers:
    """A stream of answers, and the number of answered texts."""

    def __init__(self, stream: TextIO, done: int = 0) -> None:
        self.stream, self.done = stream, done

    def write(self, answers: Sequence[str]) -> None:
        """Writes the answers to one text, a line each."""
        self.stream.write("".join(answer + "\n" for answer in answers))
        self.done += 1
        self.flush()

    def flush(self, at_once: bool = False) -> None:
        """Flushes the answers to the disk."""
        self.stream.flush()


class NotedAnswers(Answers):
    """Answers in a file, with a `note` beside it of their progress and their `source`."""

    def __init__(self, stream: TextIO, note: Path, source: Source, done: int) -> None:
        """Continues after the answers to the first `done` texts."""
        super().__init__(stream, done)
        self._note, self._source, self._flushed = note, source, 0.0

    def flush(self, at_once: bool = False) -> None:
        """Flushes the answers to the disk, then notes their number; unless `at_once`, not more often than
        `FLUSHED_EVERY`."""
        if not at_once and time.monotonic() - self._flushed < FLUSHED_EVERY:
            return
        self.stream.flush()
        size = os.fstat(self.stream.fileno()).st_size
        part = self._note.with_name(self._note.name + ".new")
        part.write_text(json.dumps({"of": self._source, "texts": self.done, "bytes": size}))
        os.replace(part, self._note)
        self._flushed = time.monotonic()


Writing = AbstractContextManager[Answers]


def writing(target: str | None, flag: str = "--output", source: Source | None = None) -> Writing:
    """Answers to standard output, or to a file that appears when all are written; only the first process
    writes. `flag` is that of the file, for messages. Until then they are in TARGET.part.

    With a `source`, an interrupted command leaves TARGET.part and a note of its progress, TARGET.part.json;
    the same command continues it (`done` counts the answered texts).

    Raises:
      UserError: TARGET.part exists and has answers to another input.
    """
    if jax.process_index() != 0:
        target = os.devnull
    if not target:
        return contextlib.nullcontext(Answers(sys.stdout))
    path = Path(target)
    if path.exists() and not path.is_file():  # a pipe or /dev/null cannot be replaced
        return _to_special(path, flag)
    return _to_file(path, flag, source)


@contextlib.contextmanager
def _to_special(path: Path, flag: str) -> Iterator[Answers]:
    with _open(path, "w", path, flag) as stream:
        yield Answers(stream)


@contextlib.contextmanager
def _to_file(path: Path, flag: str, source: Source | None) -> Iterator[Answers]:
    part, note = (path.with_name(path.name + end) for end in (".part", ".part.json"))
    there = part.exists()
    with _open(part, "a", path, flag) as stream:
        if not try_lock(stream, part):
            raise UserError(f"{flag}: {part} is being written by another command; choose another file")
        done, size = _progress(part, note, source, flag) if there else (0, 0)
        answers = NotedAnswers(stream, note, source, done) if source else Answers(stream)
        try:
            stream.truncate(size)
            try:
                answers.flush(at_once=True)
                yield answers
            finally:
                answers.flush(at_once=True)
        except BaseException as error:
            if not source or not answers.done or isinstance(error, UserError):  # another input will be given
                part.unlink(missing_ok=True)
                note.unlink(missing_ok=True)
            else:
                line = f"{answers.done:,} texts are answered in {part}; the same command continues from there"
                print(line, file=sys.stderr, flush=True)
            raise
        os.replace(part, path)
        note.unlink(missing_ok=True)


def _progress(part: Path, note: Path, source: Source | None, flag: str) -> tuple[int, int]:
    """The number of texts that an interrupted command has answered in `part`, and the size up to there."""
    if not source and not part.stat().st_size:
        return 0, 0
    try:
        noted = parse_json(note.read_bytes())
        same = source and noted["of"] == json.loads(json.dumps(source))
        done, size = int(noted["texts"]), int(noted["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        same, done, size = False, 0, 0
    if not same or part.stat().st_size < size:
        raise UserError(
            f"{flag}: {part} is there, of another input, model or flags; move it away, or give them again"
        )
    return done, size


def _open(path: Path, mode: str, target: Path, flag: str) -> TextIO:
    try:
        return path.open(mode, encoding="utf-8", errors="surrogateescape")  # type: ignore[return-value]
    except OSError as error:
        raise UserError(f"{flag}: {target}: {error.strerror}") from None
