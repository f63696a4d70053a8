"""The words of code, messages and pages are those of JAX's own documentation."""

import re
import subprocess

import pytest

from tests import runs

INSTEAD = {
    r"\b[Aa]new\b": "again",
    r"\b[Gg]o(es)? on\b|\bgoing on\b|\bwent on\b": "continue",
    r"\banother one\b": "another, a different one",
    r"\bso many\b": "that many, this many",
    r"\b[Nn]obody\b": "no one",
    r"(?<![Tt]here )\b(is|are) no (?!longer|more|less|such|further|other|better|larger|one\b)\w": "is not a",
}
"""Pattern -> what is written instead."""

ALLOWED = ('"anew"', "`anew`")
"""Parts of lines with a key of fork.json."""

CIRCLING = re.compile(r'^\s*"""(What|How) ')
"""Docstrings that circle the thing in place of naming it."""


def lines(*patterns: str) -> list[tuple[str, str]]:
    names = subprocess.run(
        ["git", "ls-files", *patterns], cwd=runs.ROOT, capture_output=True, text=True, check=True
    )
    files = [name for name in names.stdout.split() if name != "tests/test_english.py"]
    found = []
    for name in files:
        for number, line in enumerate((runs.ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            found.append((f"{name}:{number}", line))
    return found


LINES = lines("*.py", "*.md", "*.sh")


@pytest.mark.parametrize("pattern", INSTEAD)
def test_no_line_has_it(pattern):
    found = [
        f"{place}: {line.strip()}"
        for place, line in LINES
        if re.search(pattern, line) and not any(part in line for part in ALLOWED)
    ]
    assert not found, f"write: {INSTEAD[pattern]}"


def test_docstrings_begin_with_the_name_of_the_thing():
    """But for those of tests, which are sentences."""
    code = [(place, line) for place, line in LINES if not place.startswith("tests/")]
    assert [f"{place}: {line.strip()}" for place, line in code if CIRCLING.search(line)] == []
