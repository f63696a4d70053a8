"""The tutorials of docs/tutorials, carried out in a copy of the repository in the order of the site."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import runs

NAMES = ("first_run", "fine_tune", "own_attention", "study")
"""In their order: each may use runs of those before it."""

PAGES = {name: (runs.ROOT / f"docs/tutorials/{name}.md").read_text(encoding="utf-8") for name in NAMES}
BLOCKS = [
    (kind, code)
    for page in PAGES.values()
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
]

SHORTER = {
    "configs/lm.py": "configs/lm.py:tiny",
    "model.d_model=64": "model.d_model=32",
    "model.d_ff=256": "model.d_ff=64",
    "train.steps=300": "train.steps=4",
    "train.steps=200": "train.steps=2",
    "train.steps=100": "train.steps=2",
    "learning_rate=0.005,0.01,0.02,0.04,0.08": "learning_rate=0.04,0.08",
}
"""What a command has -> what it has here, so that it takes seconds."""

RUN_ALL = """
import json, pathlib, sys
import launch
from workdir import api
api.settle = lambda: None  # for the whole process, which runs commands too
for kind, code in json.loads(sys.argv[1]):
    print(code, flush=True)
    if kind == "bash":
        assert launch.main(code) == 0, code
    elif code.startswith("# my/"):
        pathlib.Path(code[2:].partition("\\n")[0]).write_text(code)
    else:
        exec(code, {})
"""


def shorter(command: str) -> list[str]:
    """The arguments of a command, with a small model, few steps and a small text."""
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    python, script, *arguments = shlex.split(command)
    assert (python, script) == ("python", "launch.py")
    if "--config=configs/lm.py:tiny" in arguments and "--config.data.source" not in command:
        arguments.append("--config.data.source=text:text/*.txt")
    if "--mode=compare" in arguments and "--pairs" not in command:
        arguments.append("--pairs=2")
    return [argument.replace("--pairs=8", "--pairs=2") for argument in arguments]


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory):
    """The folder in which all was done, and what was printed."""
    copy = tmp_path_factory.mktemp("tutorials")
    for name in ("transformer", "experiments", "workdir", "commands", "configs", "docs", "launch.py"):
        source = runs.ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    (copy / "my").mkdir()
    runs.write_corpus(copy / "text")
    blocks: list[tuple[str, object]] = []
    for kind, code in BLOCKS:
        blocks += [(kind, shorter(line)) for line in code.splitlines()] if kind == "bash" else [(kind, code)]
    environment = os.environ | {
        "XDG_CACHE_HOME": str(copy / "cache"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    }
    arguments = [sys.executable, "-c", RUN_ALL, json.dumps(blocks)]
    done = subprocess.run(arguments, cwd=copy, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return copy, done.stdout


def test_each_tutorial_has_commands_that_are_shortened_here():
    assert {kind for kind, _ in BLOCKS} == {"bash", "python"}
    commands = [shorter(line) for kind, code in BLOCKS if kind == "bash" for line in code.splitlines()]
    trained = [command for command in commands if "--config=configs/lm.py:tiny" in command]
    assert len(commands) >= 15 and len(trained) >= 6
    for command in trained:
        assert any(re.fullmatch(r"--config\.train\.steps=[24]", argument) for argument in command)
    for long in SHORTER:
        assert any(long in page for page in PAGES.values()), f"no tutorial has {long}"


@pytest.mark.thorough
def test_each_tutorial_ends_with_what_it_promises(carried_out):
    folder, printed = carried_out
    for run, steps in {"first": 4, "tuned": 2, "sigmoid": 2}.items():
        assert (
            json.loads((folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()[-1])["step"] == steps
        )
    assert json.loads((folder / "models/tuned/config.json").read_text())["model_type"]
    assert json.loads((folder / "runs/sigmoid/config.json").read_text())["model"]["mixer"] == "sigmoid"
    assert any((folder / "runs/rate/pictures").iterdir())
    assert printed.count("2 pairs") >= 3
