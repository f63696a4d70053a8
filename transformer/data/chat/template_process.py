"""Jinja templates from elsewhere, rendered by a process of its own whose time and memory the system limits.

A sandbox limits what a template can reach, not what it can compute: filters, methods and loops can take any
time and memory. This file is both the process (`python -P template_process.py`, which needs only Jinja) and
what speaks to it: a request is a line, the JSON of the arguments of `additions`, and so is the reply.
"""

import atexit
import contextlib
import functools
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

SECONDS = 2
"""The processor time of a rendering; the clock of the wall would also count what other programs do."""

MEMORY = 512 << 20
"""Bytes of address space above what the process has at its start; not enforced on macOS."""

CHARACTERS = 1 << 24
"""The length of a text that a template may write."""

MESSAGE = 400
"""The characters of an error's message that are kept."""

NUMBER = 1 << 20
"""The largest number that a template may multiply or raise to a power."""

OUT_OF_MEMORY = 12
"""The exit code of the process when it needs more than `MEMORY`."""

REWRITES = "writes earlier messages otherwise when others follow"
"""The fault of a template whose later text does not begin with an earlier one."""

View = Sequence[Any]
"""(number of the first messages that are written, whether the beginning of an answer follows)"""

Reply = dict[str, Any]
"""{"added": a text for each view}, or {"fault": what follows the template's name}, and "line"."""


class Fault(Exception):
    """The fault in a text of a template."""


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, with which templates mark answers: the text inside."""

    tags = {"generation"}  # noqa: RUF012 (the name that Jinja reads)

    def parse(self, parser: Any) -> list[nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a template can change nothing, call nothing of Python's, and multiply only
    small numbers."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The product or the power of small numbers."""
        if any(not isinstance(factor, int | float) or abs(factor) > NUMBER for factor in (left, right)):
            raise SecurityError(f"{operator} of other than small numbers")
        if operator == "**" and abs(right) > 64:
            raise SecurityError("** with a large exponent")
        return super().call_binop(context, operator, left, right)


@functools.lru_cache(16)
def _compile(source: str) -> jinja2.Template:
    extensions = ["jinja2.ext.loopcontrols", Generation]
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _refuse
    # No clock: the tokens of a conversation do not depend on the day.
    return sandbox.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    options = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> Iterator[None]:
    raise jinja2.TemplateError(message)


def additions(
    source: str,
    values: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    views: Sequence[View],
    longest: float = math.inf,
    begin: Callable[[], Any] = lambda: None,
) -> Reply:
    """Renders a template once for each view, in this process: what each text adds to the one before it.

    Texts have at most `longest` characters, and `start` is called before each; nothing else is limited.
    """
    added, before = [], ""
    try:
        for count, answering in views:
            begin()
            view = {"messages": messages[:count], "add_generation_prompt": answering}
            text = _render(_compile(source), {**values, **view}, longest)
            if not text.startswith(before):
                raise Fault(REWRITES)
            added.append(text[len(before) :])
            before = text
    except Fault as error:
        return {"fault": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"fault": _line(error.message), "line": error.lineno}
    except MemoryError:
        raise
    except Exception as error:  # whatever it is, the template is the cause
        return {"fault": f"refuses it: {_line(error)}"}
    return {"added": added}


def _render(template: jinja2.Template, values: Mapping[str, Any], longest: float) -> str:
    pieces, length = [], 0
    for piece in template.generate(values):
        pieces.append(piece)
        if (length := length + len(piece)) > longest:
            raise Fault(f"writes more than {longest:,} characters")
    text = "".join(pieces)
    text.encode()  # half of a surrogate pair is an error
    return text


def _line(message: Any) -> str:
    """A message, which may be the template's own, in a line."""
    return " ".join(str(message)[:MESSAGE].split()).encode(errors="backslashreplace").decode()


class Renderer:
    """Renders in a process of its own, which starts with the first template, serves all threads, and ends
    with this process or at a limit; then a new one starts with the next template."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def additions(self, *arguments: Any) -> Reply:
        """`additions` of arguments that JSON can hold, within the limits."""
        request = json.dumps(arguments).encode() + b"\n"
        with self._lock:
            if self._process and self._process.poll() is not None:  # ended by someone else
                self.stop()
            process = self._process = self._process or _start()
            assert process.stdin and process.stdout
            try:
                with contextlib.suppress(BrokenPipeError):  # then there is no reply either
                    while request:
                        request = request[os.write(process.stdin.fileno(), request) :]
                line = process.stdout.readline()
            except BaseException:  # an interrupt: the next reply would be that to this request
                self.stop()
                raise
            if not line.endswith(b"\n"):
                code = process.wait()
                self.stop()
                return {"fault": _fault(code)}
        return json.loads(line)

    def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process:
            with process:  # closes the pipes, and waits
                process.kill()


RENDERER = Renderer()
atexit.register(RENDERER.stop)
os.register_at_fork(after_in_child=RENDERER.__init__)  # type: ignore[misc] # the pipes are the parent's


def _start() -> subprocess.Popen[bytes]:
    # -P: no file beside this one is imported in place of a library.
    command = [sys.executable, "-P", __file__]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)


def _fault(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"takes more than {SECONDS} s of processor time"
    if code == OUT_OF_MEMORY:
        return f"takes more than {MEMORY >> 20} MB of memory"
    return f"was not rendered: its process ended with exit code {code}"


def _serve() -> None:
    """Replies to one request after the other until there are no more. The system ends this process where a
    text takes more than `SECONDS`, even if the one that asked is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # those to all processes of a job are for the one that asks
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    begin = functools.partial(signal.setitimer, signal.ITIMER_PROF, SECONDS)
    _limit_memory()
    try:
        for line in sys.stdin.buffer:
            source, values, messages, views = json.loads(line)
            added = additions(source, values, messages, views, CHARACTERS, begin)
            reply = json.dumps(added, ensure_ascii=False)
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.buffer.write(reply.encode() + b"\n")
            sys.stdout.buffer.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _limit_memory() -> None:
    if sys.platform != "linux":
        return
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + MEMORY if hard == resource.RLIM_INFINITY else min(used + MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    _serve()
