"""Output files that an interrupted command leaves, and the same command continues."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax

from commands.support.answer_files import Answers, Writing, exclusive_part, other_answers, writing
from transformer.errors import UserError
from transformer.json_text import parse_json

NOTED_EVERY = 1.0
"""Seconds between notes of the progress: a killed program repeats at most the answers of this time."""


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


def writing_resumed(target: str | None, of: Mapping[str, Any] | None) -> Writing:
    """`writing` to --output. With `of`, which identifies the input and the model, an interrupted command
    leaves TARGET.part and a note of its progress, TARGET.part.json; the same command continues it (`done`
    counts the answered texts).

    Raises:
      UserError: TARGET.part exists and has answers to another input.
    """
    special = target and Path(target).exists() and not Path(target).is_file()
    if not target or special or of is None or jax.process_index() != 0:
        return writing(target)
    return _resuming(Path(target), of, "--output")


@contextlib.contextmanager
def _resuming(path: Path, of: Mapping[str, Any], flag: str) -> Iterator[Answers]:
    """`writing`, continued after an interruption: the progress and the input, `of`, are noted beside PATH."""
    part, note = (path.with_name(path.name + end) for end in (".part", ".part.json"))
    there = part.exists()
    with exclusive_part(part, path, flag) as stream:
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
        raise other_answers(part, flag)
    return done, size
