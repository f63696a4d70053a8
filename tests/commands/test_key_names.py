"""The names of config keys that are read from the source, and what is suggested for a misspelt one."""

import pytest

from commands.support import key_names
from experiments import EXPERIMENTS, find_experiment
from transformer.config_help import describe_keys


def test_the_keys_read_from_the_source_are_those_of_the_classes():
    keys = {key.name for name in EXPERIMENTS for key in describe_keys(find_experiment(name).Config)}
    assert {*key_names.key_names()} == keys


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("learning_rate", "optimizer.learning_rate"),
        ("model.learning_rate", "optimizer.learning_rate"),
        ("optimizer.lerning_rate", "optimizer.learning_rate"),
        ("wd", "optimizer.weight_decay"),
        ("modle.num_layers", "model.num_layers"),
        ("d_modle", "model.d_model"),
        ("batch_size", "train.batch_size"),
    ],
)
def test_the_key_that_is_meant_is_suggested_first(name, near):
    assert not key_names.may_be_key(name)
    assert key_names.nearest_keys(name)[0] == near


def test_what_is_like_no_key_gets_no_suggestion():
    assert key_names.nearest_keys("frobnicate") == []


@pytest.mark.parametrize("name", ["model", "model.d_model", "optimizer.arguments.b1", "data.sources.a.b"])
def test_groups_and_keys_of_mappings_may_be_keys(name):
    assert key_names.may_be_key(name)


def test_an_experiment_that_a_program_adds_may_have_any_key(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "mine", type("Mine", (), {}))
    assert key_names.may_be_key("model.mine")


@pytest.fixture
def source(monkeypatch, tmp_path):
    """Writes the source of an experiment, which replaces those of the repository."""

    def write(text):
        (tmp_path / "experiments").mkdir()
        (tmp_path / "experiments" / "mine.py").write_text(text)
        monkeypatch.setattr(key_names, "ROOT", tmp_path)
        key_names.key_names.cache_clear()

    yield write
    key_names.key_names.cache_clear()


def test_source_that_does_not_tell_all_keys_refuses_none(source):
    source("class MyConfig(elsewhere.RunConfig):\n    x: int = 1\n\n\nclass Mine:\n    Config = MyConfig\n")
    assert key_names.may_be_key("model.mine")


def test_what_a_docstring_describes_is_no_key(source):
    text = '"""Keys.\n\n    unit: nats\n    """'
    source(
        f"class MyConfig(Bounded):\n    {text}\n\n    x: int = 1\n\n\nclass Mine:\n    Config = MyConfig\n"
    )
    assert key_names.key_names() == ("x",)
