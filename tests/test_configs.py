import ast
import dataclasses
import importlib
import re
import shlex
import sys
import typing

import pytest

import launch
from experiments import EXPERIMENTS, find_experiment, modes
from experiments.config_files import read_config
from experiments.workdir import FIXED, FREE, flatten
from tests import runs
from transformer.freeze import freeze, refuse_idle, thaw, with_defaults

FOLDER = runs.ROOT / "configs"
CONFIGS = sorted(
    path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py") if path.parent.name != "base"
)

pytestmark = pytest.mark.usefixtures("in_root")


def values_of(name: str) -> dict:
    """All keys of an experiment, as configs/base/ lists them."""
    return getattr(importlib.import_module("configs.base"), name)().to_dict()


def groups(config: typing.Any) -> typing.Iterator[typing.Any]:
    """A frozen config and every group in it."""
    yield config
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(value := getattr(config, field.name)):
            yield from groups(value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_base_lists_every_key_of_an_experiment_with_a_valid_default(name):
    values = values_of(name)
    assert values["experiment"] == name
    assert thaw(freeze(find_experiment(name).Config, values)) == values


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_key_has_its_default_in_code_too_and_it_is_the_same(name):
    """A run folder lacks the keys that are newer than it, and takes their defaults from there."""
    assert with_defaults(find_experiment(name).Config, {"experiment": name}) == values_of(name)


def test_every_key_has_its_meaning_beside_it():
    files = sorted((FOLDER / "base").glob("*.py"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    keys = [line for line in lines if re.match(r"    \w+(\.\w+)+ = ", line)]
    assert len(keys) > 60
    for line in keys:
        group = re.search(r"= ((\w+\.)?\w+\(\))$", line)
        assert group or re.search(r"  # \S.{6,}$", line), line


def test_free_keys_exist():
    keys = {key for name in EXPERIMENTS for key in flatten(values_of(name))}
    for name in (*FREE, *FIXED):
        assert any(key.startswith(name) for key in keys), name


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_says_its_command_its_cost_and_its_result(config):
    docstring = ast.get_docstring(ast.parse((runs.ROOT / "configs" / config).read_text())) or ""
    assert f"python launch.py --config=configs/{config}" in docstring
    assert "Cost: " in docstring and "Result: " in docstring


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_says_only_what_differs_and_is_valid(config):
    values = read_config(f"configs/{config}")
    base = flatten(values_of(values["experiment"]))
    tree = ast.parse((runs.ROOT / "configs" / config).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            key = ast.unparse(node.targets[0]).partition(".")[2]
            assert key not in base or flatten(values)[key] != base[key], f"{key} is the default"
    for each in (values, read_config(f"configs/{config}:tiny")):
        refuse_idle(freeze(find_experiment(values["experiment"]).Config, each))


SWITCHES = {
    "train.evaluate_every": "1",
    "train.checkpoint_every": "1",
    "train.keep_last": "2",
    "train.average_last": "2",
    "train.profile_steps": "1",
    "train.profile_from": "1",
    "train.batch_size": "16",
    "optimizer.clip_norm": "1.0",
    "optimizer.ema_decay": "0.9",
    "parallel.microbatches": "2",
    "data.vocab_size": "300",
    "model.position": "learned",
    "model.use_bias": "true",
}
"""Keys that switch on what reads further keys."""

ONE_OF_EACH = {
    "lm.py": {"data.tokenizer": "bpe"},
    "translation.py": {"data.tokenizer": "bpe"},
    "rnn_translation.py": {"data.tokenizer": "bpe"},
    "summarization_decoder.py": {"data.tokenizer": "bpe"},
    "transformer_xl.py": {"data.tokenizer": "bpe", "model.position": "rope"},
    "bert.py": {"data.tokenizer": "bpe"},
    "classification.py": {"data.tokenizer": "bpe"},
    "finetune_question_answering.py": {"data.tokenizer": "bpe"},
    "vision.py": {},
    "word_embedding.py": {"data.subsample": "0.1"},
}
"""A config of each experiment, with what else switches something on there."""


def test_there_is_one_of_each():
    assert {read_config(f"configs/{name}")["experiment"] for name in ONE_OF_EACH} == EXPERIMENTS.keys()


@pytest.mark.parametrize("config", CONFIGS)
def test_the_tiny_preset_trains_saves_evaluates_and_predicts(monkeypatch, capfd, tmp_path, config):
    """And of each experiment's config every key is read, by what trains, evaluates or predicts: checking a
    key or keeping it in config.json does not count."""
    values = read_config(f"configs/{config}:tiny")
    switches = SWITCHES | ONE_OF_EACH[config] if config in ONE_OF_EACH else {}
    overrides = [(key, value) for key, value in switches.items() if key in flatten(values)]
    if values["data"]["source"] == "stdlib":  # which takes its time to prepare: another test does that
        overrides.append(("data.source", runs.write_corpus(tmp_path / "corpus")))
    classes = {type(group) for group in groups(modes.check_config(values, overrides))}
    read = recorded(monkeypatch, classes)
    run = [f"--workdir={tmp_path / 'run'}"]
    arguments = [f"--config.{key}={value}" for key, value in overrides]
    assert launch.main([f"--config=configs/{config}:tiny", *run, *arguments]) == 0, capfd.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir()
    flags = suggested_flags(capfd.readouterr().out)
    assert launch.main([*run, "--mode=evaluate"]) == 0, capfd.readouterr().err
    assert "eval/loss" in capfd.readouterr().out
    assert launch.main([*run, *flags]) == 0, capfd.readouterr().err
    (prompt,) = (flag.removeprefix("--prompt=") for flag in flags if flag.startswith("--prompt="))
    continues = find_experiment(values["experiment"]).continues
    answer = capfd.readouterr().out
    assert answer and answer.startswith(prompt) == continues
    if config in ONE_OF_EACH:
        if "generate" in values:  # which has keys for sampling too
            assert launch.main([*run, *flags, "--temperature=0.5"]) == 0, capfd.readouterr().err
        fields = {(cls, field.name) for cls in classes for field in dataclasses.fields(cls)}
        assert sorted(f"{cls.__name__}.{name}" for cls, name in fields - read) == []


def recorded(monkeypatch, classes) -> set:
    """Grows by (class, name) whenever a field of one of these is read in earnest."""
    read, checks = set(), ("__post_init__", "__eq__", "__hash__", "__repr__")

    def recording(cls):
        def __getattribute__(self, name):
            caller = sys._getframe(1)
            of_freeze = caller.f_globals.get("__name__") == "transformer.freeze"
            if not of_freeze and caller.f_code.co_name not in checks:
                read.add((cls, name))
            return object.__getattribute__(self, name)

        return __getattribute__

    for cls in classes:
        monkeypatch.setattr(cls, "__getattribute__", recording(cls), raising=False)
    return read


def suggested_flags(said: str) -> list[str]:
    """The flags of the command for `--mode=predict` that the last lines of a training suggest: what a prompt
    is (a text, a word, the path of an image) the experiment knows best."""
    words = shlex.split(said.rpartition("Next, for example:")[2])
    start = words.index("--mode=predict")
    return words[start : words.index("python", start)]
