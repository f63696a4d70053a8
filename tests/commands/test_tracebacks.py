"""Errors in a user's own module name its last line that ran; errors of the library keep their traceback."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import runs
from transformer import tracebacks

MODULE = """
import functools

import jax.numpy as jnp

from transformer.layers.feed_forward import FEED_FORWARDS, FeedForward


def broken(x):
    return x + jnp.zeros((3, 5))


FEED_FORWARDS["mine"] = functools.partial(FeedForward, activation=broken)
"""


@pytest.mark.thorough
def test_an_error_in_a_users_module_is_its_line_and_a_file_with_the_rest(tmp_path):
    module = tmp_path / "mine.py"
    module.write_text(MODULE)
    flags = [f"--include={module}", "--config.model.feed_forward=mine", f"--workdir={tmp_path / 'run'}"]
    command = [sys.executable, "launch.py", "--config=configs/lm.py:tiny", *flags]
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    said, code, rest = done.stderr.splitlines()[-3:]
    assert said.startswith(f"error: {module}, line 10, in broken: ValueError: Incompatible shapes")
    assert code == "    return x + jnp.zeros((3, 5))"
    whole = Path(rest.removeprefix("The whole traceback is in "))
    assert re.search(
        r"^Traceback .*^  File .*feed_forward\.py.*^ValueError: ", whole.read_text(), re.M | re.S
    )
    whole.unlink()


def raised(source: str, name: str) -> Exception:
    try:
        exec(compile(source, name, "exec"), {})
    except Exception as error:
        return error
    raise AssertionError


def test_the_last_frame_of_the_user_counts_also_below_library_code(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import json\n\n\ndef read():\n    json.loads('{')\n\n\nread()\n")
    frame = tracebacks.last_own_frame(raised(file.read_text(), str(file)))
    assert (frame.filename, frame.lineno) == (str(file), 5)


@pytest.mark.parametrize("name", ["<string>", str(runs.ROOT / "launch.py"), re.__file__, pytest.__file__])
def test_code_of_the_library_python_packages_and_no_file_is_not_the_users(name):
    assert tracebacks.last_own_frame(raised("1 / 0", name)) is None


@pytest.mark.parametrize(
    ("folder", "is_users"), [("site-packages", False), ("dist-packages", False), ("a", True)]
)
def test_an_installed_package_is_not_the_users_wherever_it_is(tmp_path, folder, is_users):
    file = tmp_path / folder / "package" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert tracebacks.is_users(file) is is_users


def test_without_room_for_a_file_the_traceback_is_printed(monkeypatch, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    error = raised(file.read_text(), str(file))

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracebacks.tempfile, "mkstemp", full)
    said = tracebacks.explain(error, tracebacks.last_own_frame(error))
    assert said.startswith("Traceback") and said.endswith("ZeroDivisionError: division by zero")
