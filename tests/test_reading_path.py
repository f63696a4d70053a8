"""The amount of code between the flags and a gradient or a completion does not grow, and the README is
right."""

import os
import re
import subprocess
import sys

import pytest

from tests import runs

LIMITS = {
    "flags to gradient": {"files": 65, "lines": 2_067, "share": 34},
    "prompt to token": {"files": 46, "lines": 1_596, "share": 33},
    "both": {"files": 74, "lines": 2_735, "share": 40},
}
"""A walk's files and lines may not grow, and its share of the code of these files (percent) may not fall:
tighten them where the walk has become shorter."""


@pytest.mark.thorough
def test_no_walk_is_longer_than_it_was():
    command = subprocess.run(
        [sys.executable, "-m", "benchmarks.reading_path"],
        cwd=runs.ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert command.returncode == 0, command.stderr
    pattern = r"^(.+): (\d+) files, ([\d,]+) lines, (\d+)% of their code$"
    walks = {
        name: {"files": int(files), "lines": int(lines.replace(",", "")), "share": int(share)}
        for name, files, lines, share in re.findall(pattern, command.stdout, re.M)
    }
    assert walks.keys() == LIMITS.keys()
    for name, walk in walks.items():
        assert walk["files"] <= LIMITS[name]["files"], name
        assert walk["lines"] <= LIMITS[name]["lines"], name
        assert walk["share"] >= LIMITS[name]["share"], name
    rows = re.findall(r"^\| (\S+\.py) \| \d+ \| \d+ \| \d+ \| \d+ \|$", command.stdout, re.M)
    assert len(rows) == walks["both"]["files"]
    page = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Reading order\n(.*?)^## ", page, re.M | re.S)
    listed = re.findall(r"^\d+\. `([^`]+)`", section, re.M)
    assert 10 <= len(listed) <= 14
    assert [name for name in listed if name not in rows] == []  # each is on the way
