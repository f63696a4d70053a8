"""Output files of commands, which appear when all answers are written."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import jax

from transformer.errors import UserError
from workdir.lock import try_lock


class Answers:
    """A stream of answers, and the number of answered texts."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.done = stream, 0

    def write(self, answers: Sequence[str]) -> None:
        """Writes the answers to one text, a line each."""
        self.stream.write("".join(answer + "\n" for answer in answers))
        self.stream.flush()
        self.done += 1


Writing = AbstractContextManager[Answers]


def writing(target: str | None, flag: str = "--output") -> Writing:
    """Answers to standard output, or to a file that appears when all are written; only the first process
    writes. `flag` is that of the file, for messages. Until then they are in TARGET.part.

    Raises:
      UserError: TARGET.part exists and has answers to another input.
    """
    if jax.process_index() != 0:
        target = os.devnull
    if not target:
        return contextlib.nullcontext(Answers(sys.stdout))
    path = Path(target)
    # A pipe or /dev/null cannot be replaced.
    return _to_special(path, flag) if path.exists() and not path.is_file() else _to_file(path, flag)


@contextlib.contextmanager
def _to_special(path: Path, flag: str) -> Iterator[Answers]:
    with _open(path, "w", path, flag) as stream:
        yield Answers(stream)


@contextlib.contextmanager
def _to_file(path: Path, flag: str) -> Iterator[Answers]:
    part = path.with_name(path.name + ".part")
    with exclusive_part(part, path, flag) as stream:
        if os.fstat(stream.fileno()).st_size:
            raise other_answers(part, flag)
        try:
            yield Answers(stream)
            stream.flush()
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        os.replace(part, path)


def other_answers(part: Path, flag: str) -> UserError:
    """The error for a file `part` with answers to another input."""
    return UserError(
        f"{flag}: {part} is there, of another input, model or flags; move it away, or give them again"
    )


@contextlib.contextmanager
def exclusive_part(part: Path, target: Path, flag: str) -> Iterator[TextIO]:
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
