"""Where answers go: to standard output, or to a file that can be gone on with after an interruption."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax

from transformer.errors import UserError

NOTED_EVERY = 1.0
"""Seconds after which it is noted how far the answers go: what a killed program has to answer again."""


class Answers:
    """A stream of answers, and how many texts have theirs."""

    def __init__(self, stream: TextIO, done: int = 0, note: Path | None = None, of: Any = None) -> None:
        """With `note` it is written there, beside what the answers are `of`, how far they go."""
        self.stream, self.done, self._note, self._of = stream, done, note, of
        self._noted = time.monotonic()

    def write(self, answers: Sequence[str]) -> None:
        """The lines of one text."""
        self.stream.write("".join(answer + "\n" for answer in answers))
        self.done += 1
        if self._note is None:
            self.stream.flush()
        elif time.monotonic() - self._noted > NOTED_EVERY:
            self.note()

    def note(self) -> None:
        """Writes down how far the answers go, which are on the disk by then."""
        if self._note is None:
            return
        self.stream.flush()
        said = {"of": self._of, "texts": self.done, "bytes": os.fstat(self.stream.fileno()).st_size}
        part = self._note.with_name(self._note.name + ".new")
        part.write_text(json.dumps(said))
        os.replace(part, self._note)
        self._noted = time.monotonic()


@contextlib.contextmanager
def writing(target: str | None, of: Mapping[str, Any] | None = None) -> Iterator[Answers]:
    """Answers to standard output, or to a file that appears when all are written; on all processes but the
    first one nothing is written.

    Until then they are in TARGET.part. With `of`, which says what they answer and how, an interrupted
    command leaves that there, with a note, TARGET.part.json, of how far it goes; the same command goes on
    behind them (`done` counts them).

    Raises:
      UserError: there is a TARGET.part of something else.
    """
    if jax.process_index() != 0:
        with open(os.devnull, "w") as nowhere:
            yield Answers(nowhere)
        return
    path = Path(target or os.devnull)
    special = path.exists() and not path.is_file()  # a pipe, say, or /dev/null
    if not target:
        yield Answers(sys.stdout)
        return
    part, note = (path.with_name(path.name + end) for end in (".part", ".part.json"))
    done, size = (0, 0) if special else _left(part, note, of)
    try:
        if done:
            os.truncate(part, size)
        out = (path if special else part).open(
            "a" if done else "w", encoding="utf-8", errors="surrogateescape"
        )
    except OSError as error:
        raise UserError(f"--output: {target}: {error.strerror}") from None
    answers = Answers(out, done, None if special or of is None else note, of)
    try:
        with out:
            try:
                answers.note()
                yield answers
            finally:
                answers.note()
        if not special:
            os.replace(part, path)
            note.unlink(missing_ok=True)
    except BaseException as error:
        if special:
            raise
        if of is None or not answers.done or isinstance(error, UserError):  # another input will be given
            for file in (part, note):
                file.unlink(missing_ok=True)
        else:
            said = f"{answers.done:,} texts are answered in {part}; the same command goes on from there"
            print(said, file=sys.stderr, flush=True)
        raise


def _left(part: Path, note: Path, of: Mapping[str, Any] | None) -> tuple[int, int]:
    """How many texts an interrupted command has answered in `part`, and its size up to there."""
    if not part.exists():
        return 0, 0
    try:
        said = json.loads(note.read_text())
        same, done, size = said["of"] == json.loads(json.dumps(of)), int(said["texts"]), int(said["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        same, done, size = False, 0, 0
    if of is None or not same or part.stat().st_size < size:
        raise UserError(
            f"--output: {part} is there, of another input, model or flags; move it away, or give them again"
        )
    return done, size


def one_line(text: str) -> str:
    """The text in a line: a line break is written \\\\n, and a backslash \\\\\\\\."""
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
