"""The amount of code between the flags and a gradient or a completion does not grow, and the README is
right."""

import os
import re
import subprocess
import sys

import pytest

from tests import runs

MOST = {"files": 75, "lines": 3_175}
"""What may not grow; lower it where it has shrunk."""


@pytest.mark.thorough
def test_the_way_from_flags_to_a_text_is_no_longer_than_it_was(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.reading_path"],
        cwd=runs.ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    rows = {name: int(lines) for name, lines in re.findall(r"^\| (\S+\.py) \| (\d+) \|$", found.stdout, re.M)}
    assert len(rows) <= MOST["files"] and sum(rows.values()) <= MOST["lines"]
    page = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Reading order\n(.*?)^## ", page, re.M | re.S)
    listed = re.findall(r"^\d+\. `([^`]+)`", section, re.M)
    assert 10 <= len(listed) <= 14
    assert [name for name in listed if name not in rows] == []  # each is on the way
