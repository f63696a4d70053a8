"""What is checked before the first import that may fail: Python, packages and the platform of JAX."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from tests import runs
from transformer import requirements

LINES = ["# packages", "jax>=0.10,<0.12   # a comment", "numpy>=2.0,<3", "tqdm", "", "-r other.txt"]


def compared(**versions):
    def installed(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return requirements.compare(LINES, installed)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"jax": "0.10", "numpy": "2", "tqdm": "4"}, ([], [], [])),
        ({"jax": "0.11.0rc1", "numpy": "2.4.6", "tqdm": "0"}, ([], [], [])),
        ({"numpy": "2.0.0"}, (["jax", "tqdm"], [], [])),
        (
            {"jax": "0.9.2", "numpy": "1.26.4", "tqdm": "4"},
            ([], ["jax 0.9.2 (>=0.10)", "numpy 1.26.4 (>=2.0)"], []),
        ),
        ({"jax": "0.12.0", "numpy": "2.10", "tqdm": "4"}, ([], [], ["jax 0.12.0 (<0.12)"])),
    ],
)
def test_versions_are_compared_as_numbers(versions, expected):
    assert compared(**versions) == expected


def test_this_environment_has_what_the_file_lists():
    lines = (runs.ROOT / "requirements.txt").read_text().splitlines()
    assert len([*requirements.parse(lines)]) > 20
    assert requirements.compare(lines) == ([], [], [])


def test_the_oldest_python_is_that_of_pyproject():
    text = (runs.ROOT / "pyproject.toml").read_text()
    assert re.search(r'requires-python = ">=(.*)"', text)[1] == ".".join(map(str, requirements.PYTHON))


@pytest.mark.parametrize(
    ("platforms", "packages", "said"),
    [
        ("cpu", [], ""),
        ("", [], ""),
        ("cuda", ["jax_cuda13_plugin"], ""),
        ("tpu,cpu", ["libtpu"], ""),
        (
            "cuda",
            [],
            r"JAX_PLATFORMS=cuda: its package .*jax_cuda13_plugin.* \(pip install 'jax\[cuda13\]'\)",
        ),
        ("tpu", [], r"JAX_PLATFORMS=tpu: its package is not installed \(libtpu\)"),
        ("cudda", [], "JAX_PLATFORMS=cudda: unknown platform; expected one of cpu, cuda, gpu, tpu, rocm"),
        ("cpu,cuda", [], "JAX_PLATFORMS=cuda: its package"),
    ],
)
def test_a_platform_without_its_package_is_named_with_what_installs_it(
    platforms, packages, said, monkeypatch
):
    monkeypatch.setattr(requirements.importlib.metadata, "entry_points", lambda group: ())
    installed = {name: True for name in packages}.get
    found = requirements.wrong_platform({"JAX_PLATFORMS": platforms}, installed)
    assert re.match(said, found) if said else found == ""


def test_another_packages_plugin_may_bring_any_platform(monkeypatch):
    monkeypatch.setattr(requirements.importlib.metadata, "entry_points", lambda group: ("a plugin",))
    assert requirements.wrong_platform({"JAX_PLATFORMS": "metal"}) == ""


def launched(*options, **environment):
    """The last line of launch.py, and its exit code, in a Python without site-packages if options say so."""
    command = [sys.executable, *options, "launch.py", "--config=configs/lm.py:tiny"]
    done = subprocess.run(
        command, cwd=runs.ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    return done.stderr, done.returncode


def test_without_the_packages_one_line_says_what_to_install():
    said, code = launched("-S", "-E", GLIBC_TUNABLES="glibc.malloc.hugetlb=0")
    assert code == 2 and said.count("\n") == 1
    assert said.startswith("error: missing: jax, flax, optax and ")
    assert "-m pip install -r requirements.txt" in said or "use .venv" in said


def test_a_platform_that_jax_does_not_know_is_one_line():
    said, code = launched(JAX_PLATFORMS="cudda")
    assert code == 2 and said.count("\n") == 1 and "JAX_PLATFORMS=cudda" in said
