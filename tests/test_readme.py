"""The commands of README, AGENTS and docs: all of them make sense, and the first does what it says."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

import launch
from commands.sweeps.algebra import as_overrides
from commands.sweeps.spaces import read_space
from tests import runs
from workdir import api as notebook
from workdir.opening import check_config, read_config

GUIDES = [path for path in sorted((runs.ROOT / "docs").rglob("*.md")) if path.stem != "three_changes"]
"""Without the page whose commands run on a changed copy (see test_three_changes.py)."""

FILES = [runs.ROOT / "README.md", runs.ROOT / "AGENTS.md", *GUIDES]
PAGES = {path: path.read_text(encoding="utf-8") for path in FILES}
README, ALL = PAGES[FILES[0]], "".join(PAGES.values())
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", ALL, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, code in BLOCKS if kind == "bash" for line in code.splitlines()]
TRAIN, TEST, *OTHERS = dict.fromkeys(COMMANDS)

pytestmark = pytest.mark.usefixtures("in_root")


def test_the_first_screen_has_the_two_commands_and_each_is_complete():
    first_screen = "\n".join(README.splitlines()[:20])
    assert TRAIN in first_screen and TEST in first_screen
    for command in (TRAIN, TEST):
        steps = command.split(" && ")
        assert steps[0] == "python3 -m venv .venv" and steps[1].startswith(".venv/bin/pip install ")
        assert (runs.ROOT / shlex.split(steps[1])[-1]).is_file()


@pytest.mark.parametrize("command", [TRAIN.split(" && ")[-1], *OTHERS])
def test_a_command_names_flags_files_and_keys_that_exist(command):
    python, script, *arguments = shlex.split(re.sub(r"^[A-Z_]+=\w+ ", "", command))
    assert python in ("python", ".venv/bin/python")
    if script != "launch.py":
        module, *paths = arguments if script == "-m" else ("", script)
        assert not module or importlib.util.find_spec(module)
        assert all((runs.ROOT / path).exists() for path in paths if re.search(r"^(?!--).*(/|\.py$)", path))
        return
    flags, overrides = launch.parse(arguments)
    if flags.config and not flags.include:  # a file of a tutorial, whose test runs it
        check_config(read_config(flags.config), overrides)


def test_keys_and_files_that_the_page_names_exist():
    names = ("lm", "translation", "vision", "classification", "finetune_chat", "dpo", "bert", "electra")
    names += ("diffusion_lm", "studies/search/functions", "studies/search/digits")
    names += ("studies/rl/grpo_problems", "studies/rl/distillation")
    configs = (read_config(f"configs/{name}.py") for name in names)
    groups = "model|data|loss|optimizer|train|parallel|sample|generate"
    known = {f"{name}.{key}" for each in configs for name in groups.split("|") for key in each.get(name, {})}
    for key in re.findall(rf"`(?:config\.)?((?:{groups})\.(?!json\b)\w+)", ALL):
        assert key in known, key
    for path in re.findall(r"`((?:transformer|configs|experiments|tests)/[\w/.]*|\w+\.py)`", ALL):
        assert any((runs.ROOT / base / path).exists() for base in (".", "configs")), path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files(path):
    for link in re.findall(r"\]\(([^)#:]+)[)#]", PAGES[path]):
        assert (path.parent / link).exists(), link


def test_what_examples_in_python_import_exists():
    lines = [line for kind, code in BLOCKS if kind == "python" for line in code.splitlines()]
    ours = [line for line in lines if re.match(r"from (commands|configs|transformer|workdir)\b", line)]
    assert len(ours) >= 5
    for line in ours:
        if "harness" not in line or importlib.util.find_spec("lm_eval"):
            exec(line, {})


def test_the_example_of_a_search_is_read():
    (code,) = [code for kind, code in BLOCKS if kind == "python" and "def search()" in code]
    names = {}
    exec(code, names)
    types = {"optimizer.learning_rate": "float", "model.num_layers": "int", "model.feed_forward": "str"}
    (rate, layers, feed_forward) = read_space(names["search"](), types)
    found = {**rate.extremes[1], **layers.extremes[1], **feed_forward.extremes[1]}
    config = check_config(read_config("configs/lm.py"), as_overrides(found))
    assert (config.model.num_layers, config.model.feed_forward) == (6, "swiglu")


def test_the_example_of_a_sweep_has_its_runs():
    (code,) = [code for kind, code in BLOCKS if kind == "python" and "def sweep()" in code]
    names = {}
    exec(code, names)
    assert len(names["sweep"]()) == 2 * 3 + 1


@pytest.mark.thorough
def test_the_notebook_example_works(monkeypatch, capsys, tmp_path):
    source = runs.write_corpus(tmp_path / "corpus")
    assert launch.main(runs.tiny(source, tmp_path / "run")) == 0
    (code,) = [code for kind, code in BLOCKS if kind == "python" and "lm.get_config()" in code]
    assert '"runs/lm"' in code and '"runs/mine"' in code and "lm.get_config()" in code
    code = code.replace('"runs/lm"', repr(str(tmp_path / "run"))).replace(
        '"runs/mine"', repr(f"{tmp_path}/mine")
    )
    code = code.replace("lm.get_config()", f"lm.get_config('tiny'); config.data.source = {source!r}")
    monkeypatch.setattr(notebook, "settle", lambda: None)  # for the whole process, which is a test's here
    capsys.readouterr()
    names = {}
    exec(code, names)
    answer, score = capsys.readouterr().out.splitlines()[-2:]
    assert answer.startswith("[") and answer.endswith("]") and score.startswith("Score(log_likelihood=-")
    assert names["weights_hts"].shape[1:] == (len(names["tokens"]),) * 2
    assert (tmp_path / "mine" / "checkpoints" / "2").is_dir()
    assert '"num_layers": 2' in (tmp_path / "mine" / "config.json").read_text()
    (loop,) = [code for kind, code in BLOCKS if kind == "python" and "optax.adamw" in code]
    exec(loop, names)
    assert 0 < names["value"] < 10 and names["terms"].keys() >= {"loss", "bits_per_byte"}
    run, _ = names["load"](tmp_path / "run")
    loss, weigh = run.experiment.loss, run.experiment.weigh
    monkeypatch.setattr(run.experiment, "loss", lambda *a, **k: (t := loss(*a, **k)) | {"more": t["loss"]})
    monkeypatch.setattr(run.experiment, "weigh", lambda batch: weigh(batch) | {"more": weigh(batch)["loss"]})
    names["run"] = run
    value, terms = names["loss"](names["params"], run.put(run.loader.batch_at(0)), jax.random.key(0))
    assert value == pytest.approx(2 * terms["loss"])  # all that is optimised, not the loss alone


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--config.train.steps=200", pytest.param("", marks=pytest.mark.thorough)])
def test_the_training_command_beats_gzip_in_a_fresh_environment(tmp_path, flags):
    clone = tmp_path / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=runs.ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(runs.ROOT / name, clone / name)
    ours = (
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "XLA_FLAGS",
        "JAX_DISABLE_MOST_OPTIMIZATIONS",
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
    )
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    wheels = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pip")
    environment.setdefault("PIP_CACHE_DIR", str(wheels))
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{TRAIN} {flags}"],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    model, gzip = map(float, re.search(r"this model ([\d.]+), gzip -9 ([\d.]+)", done.stdout).groups())
    assert model < gzip
    lines = [json.loads(line) for line in (clone / "runs/lm/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["eval/bits_per_byte"] == pytest.approx(model, abs=1e-3)
