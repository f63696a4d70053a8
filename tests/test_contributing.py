"""The recipes of CONTRIBUTING.md, carried out on a copy of the repository."""

import ast
import json
import mailbox
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import lm
from tests import runs
from workdir import api as notebook

PAGE = (runs.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {
    match[1]: code.partition("\n")[2]
    for kind, code in BLOCKS
    if kind == "python" and (match := re.match(r"# (\w\S*\.py)\n", code))
}
ADDITIONS = [
    (match[1], code.partition("\n")[2])
    for kind, code in BLOCKS
    if kind == "python" and (match := re.match(r"# in (\S+)\n", code))
]
COMMANDS = [shlex.split(line) for kind, code in BLOCKS if kind == "bash" for line in code.splitlines()]

RUN_ALL = """
import gc, json, sys
from matplotlib.figure import Figure
from PIL import Image
import launch
gc.set_threshold(100_000, 20, 50)
Figure.savefig = lambda figure, path, **options: Image.new("RGB", (8, 8)).save(path)  # read for TensorBoard
for command in json.loads(sys.argv[1]):
    print(command, flush=True)
    assert launch.main(command) == 0, command
"""


PARITY = """
import torch, transformers
from workdir import load, logits

run, params = load("runs/imported")
tokenizer, text = run.experiment.data.tokenizer, "def add(a, b):"
tokens = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)]])
model = transformers.AutoModelForCausalLM.from_pretrained("models/seed_oss").eval()
theirs = model(tokens).logits[0, :, : tokenizer.vocab_size].detach().numpy()
_, ours = logits(run, params, text)
print(type(model).__name__, abs(ours - theirs).max() / abs(theirs).max())
"""


def add(file: Path, addition: str) -> None:
    """Adds the imports after those of the file, and the entries at the end of the dictionary."""
    text = file.read_text()
    for line in addition.splitlines():
        if line.startswith("from "):
            last = [match.end() for match in re.finditer(r"^from .*\n", text, re.MULTILINE)][-1]
            text = f"{text[:last]}{line}\n{text[last:]}"
    name, entries = re.search(
        r"^(\w+) = \{\n\s+\.\.\.\n(.*?)^\}", addition, re.MULTILINE | re.DOTALL
    ).groups()
    dictionary = re.search(rf"^{name}\b.*?^\}}", text, re.MULTILINE | re.DOTALL)
    end = dictionary.end() - 1
    file.write_text(text[:end] + entries + text[end:])


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the repository in which every recipe was followed and every command run."""
    copy = tmp_path_factory.mktemp("copy")
    for name in (
        "transformer",
        "experiments",
        "workdir",
        "commands",
        "configs",
        "pyproject.toml",
        "launch.py",
    ):
        source = runs.ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    for name, code in FILES.items():
        assert not (copy / name).exists()
        (copy / name).write_text(code)
    for name, code in ADDITIONS:
        add(copy / name, code)
    text = runs.write_corpus(copy / "text")
    letters = mailbox.mbox(copy / "letters.mbox")
    for path in sorted((copy / "text").iterdir()):
        body = path.read_text(encoding="utf-8")
        letters.add(mailbox.mboxMessage(f"Subject: {path.name}\n\n{body}".encode()))
    letters.flush()
    commands = [command[2:] for command in COMMANDS]
    for command in commands:  # the standard library takes its time to prepare: another test does that
        # The task of one's own makes its records.
        without = ("--config.data.source=", "--mode=", "--config=configs/waves.py")
        if not any(argument.startswith(without) for argument in command):
            command.append(f"--config.data.source={text}")
    environment = os.environ | {
        "XDG_CACHE_HOME": str(copy / "cache"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    }
    arguments = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    done = subprocess.run(arguments, cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (copy / "said.txt").write_text(done.stdout, encoding="utf-8")
    return copy


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_the_page_has_the_recipes_it_should_have():
    assert len(COMMANDS) == 19 and len(FILES) == 17 and len(ADDITIONS) == 16
    assert all(command[:2] == ["python", "launch.py"] for command in COMMANDS)


@pytest.mark.thorough
def test_each_recipe_trains(extended):
    config = {}
    names = ("kerple", "moving_average", "by_head", "lion", "mbox", "unigram", "ratio", "poly", "norms")
    added = ("dynamic_tanh", "reglu", "square_root", "seed_oss", "waves")
    for run in (*names, *added, "status", "confidence_penalty"):
        assert metrics(extended / "runs" / run)["step"] == 2
        config[run] = json.loads((extended / "runs" / run / "config.json").read_text())
    assert config["kerple"]["model"]["position"] == "kerple"
    assert config["moving_average"]["model"]["mixer"] == "moving_average"
    assert config["by_head"]["model"]["kernel"] == "by_head"
    assert config["lion"]["optimizer"]["arguments"] == {"b2": 0.98}
    assert config["mbox"]["data"]["source"] == "mbox:letters.mbox"
    assert config["unigram"]["data"]["tokenizer"] == "unigram"
    assert "generate/length_ratio" in metrics(extended / "runs" / "ratio")
    assert config["poly"]["loss"]["arguments"] == {"epsilon": 2}
    assert config["dynamic_tanh"]["model"]["norm"] == "dynamic_tanh"
    assert config["reglu"]["model"]["feed_forward"] == "reglu"
    assert config["square_root"]["optimizer"]["schedule"] == "square_root"
    assert config["waves"]["experiment"] == "waves" and metrics(extended / "runs" / "waves")["eval/loss"] > 0
    published = json.loads((extended / "models/seed_oss/config.json").read_text())
    assert published["model_type"] == "seed_oss" and published["attention_bias"]
    imported = json.loads((extended / "runs/imported/config.json").read_text())
    assert imported["model"]["qkv_bias"] and imported["model"]["feed_forward"] == "swiglu"
    assert metrics(extended / "runs" / "norms")["parameters/norm"] > 0
    status, written = (extended / "runs" / "status" / name for name in ("status.json", "metrics.jsonl"))
    finite = {name for line in written.read_text().splitlines() for name in json.loads(line)}
    assert json.loads(status.read_text()).keys() == finite and metrics(status.parent)["step"] == 2
    poly, penalty = (metrics(extended / "runs" / run) for run in ("poly", "confidence_penalty"))
    assert poly["eval/loss"] > poly["eval/nll"] + 1  # 2 (1 - p) more, with p small after two steps
    assert 0 < penalty["train/certainty"] < 1 and "eval/bits_per_byte" in penalty


@pytest.mark.thorough
def test_the_command_counts_the_parameters_of_each_module(extended):
    said = (extended / "said.txt").read_text(encoding="utf-8")
    trained = re.search(r"kerple: ([\d,]+) parameters on", said)[1]
    of_modules = re.search(r"^((?:\w+: [\d,]+\n)+)all: ([\d,]+)$", said, re.MULTILINE)
    counts = dict(line.split(": ") for line in of_modules[1].splitlines())
    assert {"embedding", "blocks"} <= counts.keys()
    assert of_modules[2] == trained == f"{sum(int(count.replace(',', '')) for count in counts.values()):,}"


@pytest.mark.thorough
def test_the_family_computes_the_logits_of_transformers(extended):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, "-c", PARITY], cwd=extended, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, difference = done.stdout.split()[-2:]
    assert name == "SeedOssForCausalLM" and float(difference) < 1e-5


@pytest.mark.thorough
def test_the_hook_is_called_from_a_notebook(monkeypatch, in_root, tmp_path):
    (code,) = [code for kind, code in BLOCKS if kind == "python" and "hooks=" in code]
    source = runs.write_corpus(tmp_path / "corpus")
    monkeypatch.setattr(notebook, "settle", lambda: None)  # for the whole process, which is a test's here
    assert '"runs/hooked"' in code and "lm.get_config()" in code
    code = code.replace('"runs/hooked"', repr(str(tmp_path / "run"))).replace("lm.get_config()", "config")
    config = lm.get_config("tiny")
    config.data.source = source
    names = {"config": config}
    exec(code, names)
    largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(names["params"]))
    assert metrics(tmp_path / "run")["parameters/largest"] == pytest.approx(largest)


def test_recipes_are_as_short_as_promised():
    lines = {name: len(code.splitlines()) for name, code in FILES.items()}
    assert lines["transformer/layers/attention/positions/kerple.py"] <= 40
    assert lines["transformer/layers/mixers/moving_average.py"] <= 50
    assert lines["transformer/layers/attention/kernels/by_head.py"] <= 45
    assert lines["transformer/training/losses/poly.py"] <= 20
    assert lines["experiments/parameter_norm.py"] <= 25
    assert lines["experiments/confidence_penalty.py"] <= 80
    assert lines["experiments/waves.py"] <= 110
    assert lines["transformer/layers/dynamic_tanh.py"] <= 30
    assert lines["transformer/training/optim/square_root.py"] <= 25


def bound(tree: ast.Module) -> set[str]:
    """The names that a module binds."""
    names = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    names |= {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return names | {alias.asname or alias.name for node in imports for alias in node.names}


WHOLE = [code for kind, code in BLOCKS if kind == "python" and not code.startswith("# in ")]
"""Code that Python reads; an addition to a dictionary has dots."""


@pytest.mark.parametrize("code", WHOLE)
def test_what_a_recipe_imports_is_there_under_this_name(code):
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        file = str(node.module).replace(".", "/")
        path = runs.ROOT / f"{file}.py"
        path = path if path.exists() else runs.ROOT / file / "__init__.py"
        if f"{file}.py" not in FILES and path.exists():
            names = bound(ast.parse(path.read_text(encoding="utf-8")))
            modules = {module.stem for module in path.parent.glob("*.py")}
            lazy = "__getattr__" in names  # `workdir`, whose names stand in a tuple
            assert lazy or {alias.name for alias in node.names} <= names | modules, node.module


def test_the_index_names_every_family_and_every_recipe():
    """The first table of the page, by its links and dictionaries."""
    recipes = re.findall(r"^## (An? .*)$", PAGE, re.MULTILINE)
    index = PAGE.partition("## Where does my line go?")[2].partition("\n## ")[0]
    for recipe in recipes:
        assert f"](#{recipe.lower().replace(' ', '-')})" in index, recipe
    dictionaries = {re.search(r"^([A-Z_]+) = \{", code, re.MULTILINE)[1] for _, code in ADDITIONS}
    assert dictionaries <= set(re.findall(r"`([A-Z_]+)`", index))
    for place in re.findall(r"`((?:transformer|commands|workdir|experiments)/[\w/.]*)`", index):
        assert (runs.ROOT / place).exists(), place


@pytest.mark.thorough
def test_recipes_pass_ruff(extended):
    for command in (["check"], ["format", "--diff"]):
        ruff = [sys.executable, "-m", "ruff", *command, *FILES]
        done = subprocess.run(ruff, cwd=extended, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_addition_goes_to_the_end_of_the_dictionary(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        '"""Doc."""\n\nfrom a import A\n\nTHINGS: dict[str, type] = {\n    "a": A,\n}\n"""Meaning."""\n'
    )
    add(file, 'from b import B\n\nTHINGS = {\n    ...\n    "b": B,\n}\n')
    assert (
        'from a import A\nfrom b import B\n\nTHINGS: dict[str, type] = {\n    "a": A,\n    "b": B,\n}\n'
        in (file.read_text())
    )
