"""Checks the environment before the imports that would fail in it: Python, packages, JAX's platform.

Only the standard library is imported here: where a package is missing, anything else ends in a traceback.
"""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from transformer.runtime import ACCELERATORS

ROOT = Path(__file__).resolve().parent.parent

PYTHON = (3, 11)
"""The oldest Python, as pyproject.toml says too."""

REQUIREMENT = re.compile(r"(\w[\w.-]*)(?:\[.*\])?((?:[<>]=?[\d.]+,?)*)")

NVIDIA, GOOGLE, AMD = ACCELERATORS.values()

PLATFORMS = {
    "cpu": ("", ()),
    "cuda": ("cuda13", NVIDIA),
    "gpu": ("cuda13", NVIDIA),
    "tpu": ("tpu", GOOGLE),
    "rocm": ("rocm7-local", AMD),
}
"""Name in JAX_PLATFORMS -> the extra of jax that installs what it needs, and the packages of which it needs
one."""


def check() -> None:
    """Ends the program with exit code 2 and one line if the environment cannot run it; warns of packages that
    are newer than what is tested."""
    file = ROOT / "requirements.txt"
    if sys.version_info < PYTHON:
        running = ".".join(map(str, sys.version_info[:3]))
        end(f"Python {running} runs this program; it needs {'.'.join(map(str, PYTHON))} or newer")
    requirements = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    missing, old, new = compare(requirements)
    if missing or old:
        end(f"{'; '.join([*listed('missing', missing), *listed('too old', old)])}. {remedy()}")
    for line in listed("newer than what is tested", new):
        print(f"warning: {line}", file=sys.stderr)
    if wrong := wrong_platform():
        end(wrong)


def end(line: str) -> None:
    """Ends the program after a mistake of the user."""
    print(f"error: {line}", file=sys.stderr)
    raise SystemExit(2)


def compare(
    requirements: Iterable[str], installed: Callable[[str], str] = importlib.metadata.version
) -> tuple[list[str], list[str], list[str]]:
    """The packages that are missing, too old, or too new, by lines like "jax>=0.10,<0.12"."""
    missing, old, new = [], [], []
    for name, bounds in parse(requirements):
        try:
            version = installed(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        for bound in filter(None, bounds.split(",")):
            if bound.startswith(">=") and numbers(version) < numbers(bound):
                old.append(f"{name} {version} ({bound})")
            if bound.startswith("<") and numbers(version) >= numbers(bound):
                new.append(f"{name} {version} ({bound})")
    return missing, old, new


def parse(requirements: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name and the bounds in each line that has a requirement."""
    for line in requirements:
        text = line.partition("#")[0].replace(" ", "")
        if match := REQUIREMENT.match(text):
            yield match[1], match[2]


def numbers(version: str) -> tuple[int, ...]:
    """(0, 10, 2) of "0.10.2" or ">=0.10.2"; without zeros at its end, so that 2 equals 2.0."""
    digits = re.search(r"\d+(?:\.\d+)*", version)
    release = [int(part) for part in digits[0].split(".")] if digits else []
    while release and not release[-1]:
        release.pop()
    return tuple(release)


def listed(label: str, packages: list[str], most: int = 3) -> Iterator[str]:
    """ "missing: jax, flax, optax and 20 more", if there are any."""
    if packages:
        more = f" and {len(packages) - most} more" if len(packages) > most else ""
        yield f"{label}: {', '.join(packages[:most])}{more}"


def remedy() -> str:
    """The hint for an environment that lacks packages."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.is_file() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        return f"This is {sys.executable}; use {shlex.quote(os.path.relpath(python))}"
    install = f"{sys.executable} -m pip install -r {os.path.relpath(ROOT / 'requirements.txt')}"
    return f"Install them ({install}), or make .venv as README.md shows and use .venv/bin/python"


def wrong_platform(
    environment: Mapping[str, str] = os.environ,
    installed: Callable[[str], object] = importlib.util.find_spec,
) -> str:
    """Why JAX cannot use a platform in JAX_PLATFORMS; "" if it can, or if another package's plugin may."""
    if importlib.metadata.entry_points(group="jax_plugins"):
        return ""
    for name in filter(None, environment.get("JAX_PLATFORMS", "").split(",")):
        if name not in PLATFORMS:
            return f"JAX_PLATFORMS={name}: unknown platform; expected one of {', '.join(PLATFORMS)}"
        extra, packages = PLATFORMS[name]
        if packages and not any(map(installed, packages)):
            return (
                f"JAX_PLATFORMS={name}: its package is not installed ({' or '.join(packages)}); "
                f"install it (pip install 'jax[{extra}]'), or unset JAX_PLATFORMS"
            )
    return ""
