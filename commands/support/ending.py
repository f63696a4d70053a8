"""Exit codes and one-line error messages, also where a command runs in several processes."""

import contextlib
import os
import sys
import threading
import traceback

from transformer import distributed, tracebacks
from transformer.errors import StorageError, UnknownMember, UserError, brief, first_line, printable
from transformer.training.checkpoints.storage import is_failing

INCLUDE = " (--include=FILE runs a file that adds it)"
"""The hint for an unknown member that the config file of a run may have added to its family."""

NO_BACKEND = "Unable to initialize backend"
"""Part of JAX's message about a platform that it cannot use."""

LESS_MEMORY = "a device has too little memory: docs/devices.md, Costs and memory, lists what saves it"
"""The note on an error of a device whose memory a program exhausts."""

MAX_ERROR_CHARACTERS = 200
"""The most characters of an error that another process prints."""

LEAVING = threading.Lock()
"""Held by the thread that ends this process, one of several."""


def code_of(error: BaseException, has_config: bool) -> int:
    """The exit code of the error that is being handled, which is printed in a line; one that has no code is
    raised again. `has_config`: whether a config file is given."""
    match error:
        case UserError():
            hint = INCLUDE if isinstance(error, UnknownMember) and not has_config else ""
            return end(2, " ".join(["error:", *str(error).split("\n")]) + hint)
        case StorageError():
            if error.__cause__ and not isinstance(error.__cause__, OSError):
                leave_the_dead(error)  # perhaps a save in which another process did not take part
            if distributed.PLACES:
                leave(f"error: {error}", first_line(error))
            print(printable(f"error: {error}"), file=sys.stderr)
            return 1
        case BrokenPipeError():  # the reader of the output has left; discard what is buffered
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if distributed.PLACES:
                leave("", "the reader of its output has left", code=0)
            return 0
        case OSError() if is_failing(error):
            return end(1, f"error: {error.filename or 'the output'}: {error.strerror}")
        case KeyboardInterrupt():
            return end(130, "interrupted")
        case RuntimeError() if NO_BACKEND in str(error):
            platforms = os.environ.get("JAX_PLATFORMS", "")
            return end(2, f"error: JAX_PLATFORMS={platforms}: JAX cannot use it: {first_line(error)}")
        case SystemExit():
            raise
        case _ if type(error).__name__ == "PanicException":  # of Rust; its class cannot be imported
            return end(2, f"error: the tokenizer fails on this text ({brief(first_line(error), 100)})")
        case _:
            if distributed.PLACES or not isinstance(error, OSError):
                leave_the_dead(error)  # perhaps a collective in which another process did not take part
            exhausted = "RESOURCE_EXHAUSTED" in str(error)
            if exhausted:
                error.add_note(LESS_MEMORY)
            if distributed.PLACES:
                leave("".join(traceback.format_exception(error)).rstrip(), first_line(error))
            if not exhausted and (frame := tracebacks.last_own_frame(error)):
                return end(1, tracebacks.explain(error, frame))
            raise


def end(code: int, line: str) -> int:
    """Prints why this process ends, and returns its exit code; one of several processes ends at once if the
    others do not end too."""
    print(printable(line), file=sys.stderr, flush=True)
    if distributed.PLACES and not distributed.all_are_ending():
        leave("", line.removeprefix("error: "), code=code)
    return code


def leave_the_dead(error: BaseException) -> None:
    """Ends this process if another process has ended, which may have caused the error."""
    gone, why = distributed.announced_end() or (
        distributed.ended_process(),
        brief(first_line(error), MAX_ERROR_CHARACTERS),
    )
    if gone:
        leave_after(gone, why)


def leave_after(gone: str, why: str) -> None:
    """Ends this process after another process, with a line that names it."""
    leave(f"error: {gone} has ended, and so must the others ({why}); give the same command again", why, gone)


def leave(line: str, why: str, gone: str = "", code: int = 1) -> None:
    """Prints `line`, tells the other processes which one has `gone` (this one), and ends at once: an orderly
    end would wait for the others, which wait for this one."""
    from tqdm import tqdm

    LEAVING.acquire()  # never released: another thread that would leave as well prints nothing more
    with contextlib.suppress(OSError):  # its disk may be what is full
        sys.stdout.flush()
    with tqdm.external_write_mode(sys.stderr):  # clears a progress bar, at whose end it would be written
        print(printable(line), end="\n" if line else "", file=sys.stderr, flush=True)
        distributed.announce_end(brief(why, MAX_ERROR_CHARACTERS), gone)
        os._exit(code)
