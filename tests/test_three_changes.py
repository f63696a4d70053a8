"""The page "Three changes in an evening", carried out on a copy of the repository."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import runs
from tests.test_contributing import RUN_ALL, add

PAGE = (runs.ROOT / "docs/tutorials/three_changes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for kind, code in BLOCKS if kind == "bash" for line in code.splitlines()]
CHANGES = ("scalable", "poly_one", "topics")


def test_each_change_is_a_file_a_line_a_run_and_a_test():
    code = [code.partition("\n")[0] for kind, code in BLOCKS if kind == "python"]
    assert [line.startswith("# in ") for line in code] == [False, True] * 3
    assert [command[1:3] for command in COMMANDS] == [["launch.py", COMMANDS[0][2]], ["-m", "pytest"]] * 3
    assert [command[-1] for command in COMMANDS[1::2]] == [*CHANGES]


@pytest.mark.thorough
def test_the_changes_train_and_pass_the_tests_of_their_families(tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("transformer", "experiments", "workdir", "commands", "configs", "tests"):
        shutil.copytree(runs.ROOT / name, copy / name)
    for name in ("pyproject.toml", "launch.py", "CONTRIBUTING.md"):
        shutil.copy(runs.ROOT / name, copy / name)
    for kind, code in BLOCKS:
        if kind == "python":
            first, _, rest = code.partition("\n")
            name = first.removeprefix("# ").removeprefix("in ")
            if first.startswith("# in "):
                add(copy / name, rest)
            else:
                assert not (copy / name).exists()
                (copy / name).write_text(rest)
    text = runs.write_corpus(tmp_path / "text")
    trained = [command[2:] for command in COMMANDS[::2]]
    for command in trained:  # the standard library takes its time to prepare
        command += [] if "data.source" in " ".join(command) else [f"--config.data.source={text}"]
    environment = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    }
    run = {"cwd": copy, "env": environment, "capture_output": True, "text": True, "timeout": 900}
    done = subprocess.run([sys.executable, "-c", RUN_ALL, json.dumps(trained)], **run)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in CHANGES:
        assert (copy / "runs" / name / "checkpoints" / "2").is_dir()
    for command in COMMANDS[1::2]:
        done = subprocess.run([sys.executable, *command[1:], "-q"], **run)
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
