"""Templates from elsewhere end within their limits, in a line, and leave nothing behind."""

import concurrent.futures
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from tests import runs
from transformer.data.chat import template_process
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.chat_template import ChatTemplate
from transformer.data.chat.template_process import RENDERER, SECONDS
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

TALK = [{"role": "user", "content": "größer als 1?\u2028🙂"}, {"role": "assistant", "content": "ja"}]
ECHO = "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"

MEMORY = "takes more than 512 MB of memory"
BOMBS = {
    "{{ '%0999999999d' | format(1) }}": MEMORY,
    "{{ '{:1000000000}'.format(1) }}": MEMORY,
    "{{ 'x' | center(1000000000) }}": MEMORY,
    "{{ 'x'.ljust(1500000000) | length }}": MEMORY,
    "{{ 'x\ny' | indent(1000000000) }}": MEMORY,
    "{{ range(99999) | join('x' | center(99999)) }}": MEMORY,
    # Squared, so that one allocation fails: memory that doubles is filled first, which may take too long.
    "{% set n = namespace(x='xx') %}{% for i in range(9) %}"
    "{% set n.x = n.x | replace('x', n.x) %}{% endfor %}": MEMORY,
    "{% for i in range(99999) %}{{ 'x' | center(1000) }}{% endfor %}": "writes more than 16,777,216",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "refuses it: maximum recursion depth exceeded",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": "refuses it: maximum recursion depth exceeded",
    "{% for a in 'x' %}" * 30 + "{% endfor %}" * 30: "refuses it: too many statically nested blocks",
    "{{ raise_exception('y' | center(9999999) | replace(' ', 'y')) }}": "refuses it: yyyyyyyyy",
    "{{ raise_exception('\\ud800') }}": "refuses it: \\ud800",
    "{{ '\\ud800' }}": "refuses it: 'utf-8' codec can't encode",
}
"""Templates that ask for too much -> what is said of them."""

ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set s = 'x' | center(9999) %}" + "{% for a in s %}" * 5 + "{% endfor %}" * 5,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'a' | center(999999) | wordwrap(1) }}",
    "{{ " + "+".join(["1"] * 100_000) + " }}",
]


def number() -> int:
    """The id of the process that renders."""
    return RENDERER._process.pid


def refused(source: str) -> str:
    """What is said of a template. It takes no memory here, and a normal one is rendered after it."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as error:
        ChatTemplate(source, file="bomb.jinja").render(TALK)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 << 10
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert ChatTemplate("{{ messages[0].content }}").render(TALK) == TALK[0]["content"]
    return str(error.value)


@pytest.mark.parametrize("source", BOMBS)
def test_a_bomb_ends_in_a_line(source):
    assert refused(source).startswith(f"the chat template of bomb.jinja {BOMBS[source]}")


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("source", ENDLESS)
def test_an_endless_template_is_ended(source):
    RENDERER.stop()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    said = refused(source)
    # One that calls itself may first be too deep, as the stack of the process allows.
    assert (
        said == "the chat template of bomb.jinja takes more than 2 s of processor time"
        or "maximum recursion depth exceeded" in said
    )
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < SECONDS + 1


def test_one_process_serves_all_threads():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    template.render(TALK)
    process = number()
    for text in ("", "ä" * 200_000):  # also more than a pipe holds
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [[{"role": "user", "content": f"{text}{i}"}] for i in range(40)]
            assert list(pool.map(template.render, asked)) == [f"{text}{i}" for i in range(40)]
    assert number() == process


def test_another_process_follows_one_that_was_ended():
    template = ChatTemplate("{{ messages[0].role }}")
    assert template.render(TALK) == "user"
    process = number()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(process, each)  # to all processes of a job, which is to save and end
    assert template.render(TALK) == "user" and number() == process
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert template.render(TALK) == "user" and number() != process


def test_an_interrupted_rendering_leaves_no_reply():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            ChatTemplate("{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2).render(TALK)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ChatTemplate("{{ messages[1].content }}").render(TALK) == "ja"


def test_plain_needs_no_process(monkeypatch):
    monkeypatch.setattr(template_process, "_start", None)
    RENDERER.stop()
    assert ChatTemplate().render(TALK).endswith("ja\n")


PROGRAM = """
import os, signal
from transformer.data.chat.chat_template import ChatTemplate
from transformer.data.chat.template_process import RENDERER
template, talk = ChatTemplate("{{ messages[0].content }}"), [{"role": "user", "content": "hi"}]
assert template.render(talk) == "hi"
RENDERER._lock.acquire()  # as another thread may
child = os.fork()
if child:
    RENDERER._lock.release()
else:
    signal.alarm(30)
assert template.render(talk) == "hi"  # in both processes, each with its own
if not child:
    RENDERER.stop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert template.render(talk) == "hi"
print(RENDERER._process.pid, flush=True)
"""
NEVER = 'ChatTemplate("{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3).render(talk)'


@pytest.mark.parametrize("end", ["", "os._exit(0)", pytest.param(NEVER, marks=pytest.mark.thorough)])
def test_the_process_ends_with_the_one_that_asks(end):
    command = [sys.executable, "-c", PROGRAM + end]
    with subprocess.Popen(command, cwd=runs.ROOT, stdout=subprocess.PIPE) as asking:
        process = int(asking.stdout.readline())
        if end == NEVER:
            time.sleep(0.5)
            asking.kill()
        else:
            assert asking.wait() == 0
    until = time.monotonic() + 60
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(process)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_file_of_a_template_is_named(tmp_path):
    def data(template: str) -> str:
        keys = {"tokenizer": f"{tmp_path}/tokenizer.json", "cache_dir": f"{tmp_path}/cache"}
        with pytest.raises(UserError) as error:
            _ = ChatData(ChatDataConfig(template=template, **keys)).chat
        return str(error.value)

    tokenizer = Tokenizer.train("bytes")
    tokenizer.chat_template = "{{ 'x' | center(1000000000) }}"
    tokenizer.save(tmp_path / "tokenizer.json")
    kept = tmp_path / "tokenizer_config.json"
    assert data("auto") == f"data.template: the chat template of {kept} {MEMORY}"
    assert data(str(kept)) == data("auto")
    own = tmp_path / "chat_template.jinja"
    own.write_text("\n{% if %}")
    assert data("auto").startswith(f"data.template: line 2 of the chat template of {own}: Expected")
    own.write_text(ECHO.replace("{%", "{{ messages | length }}{%", 1))
    assert data("auto").startswith(f"data.template: the chat template of {own} writes earlier messages")
