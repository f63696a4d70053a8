"""Help is as wide as the terminal, and what it shows is what a shell runs."""

import re
import shlex

import pytest

import launch
from commands import COMMANDS, config, find_command
from commands.support.first_keys import FIRST, first_keys
from commands.support.help_page import fold
from experiments import EXPERIMENTS, find_experiment
from transformer.config_help import describe_keys


def shown(capsys, monkeypatch, mode, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        launch.main([f"--mode={mode}", "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("mode", COMMANDS)
@pytest.mark.parametrize("width", [76, 80, 200])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, mode, width):
    lines = shown(capsys, monkeypatch, mode, width).splitlines()
    assert max(map(len, lines)) <= min(width, 110)


@pytest.mark.parametrize("width", range(24, 50))
def test_a_folded_command_with_its_backslashes_fits(width):
    command = "python launch.py " + " ".join(f"--{'a' * length}" for length in range(1, 8))
    lines = fold(command, width).splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [76, 110])
@pytest.mark.parametrize("every", [False, True])
def test_the_keys_of_a_config_fit_too(capsys, monkeypatch, width, every):
    monkeypatch.setenv("COLUMNS", str(width))
    config.explain("configs/lm.py", [], every)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert any("--config.model.d_model=256 (192)" in line for line in lines)


@pytest.mark.parametrize("mode", COMMANDS)
def test_the_commands_are_those_of_the_page_in_any_width(capsys, monkeypatch, mode):
    def commands(text):
        joined = re.sub(r" \\\n +", " ", text)
        return [shlex.split(line) for line in re.findall(r"python launch\.py --.*", joined)]

    page = launch.__doc__ if mode == "train" else find_command(mode).__doc__
    assert commands(page) and commands(page) == commands(shown(capsys, monkeypatch, mode, 72))


def lines_of_keys(capsys, monkeypatch, *flags):
    """Key -> its line, and the lines between them."""
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit):
        launch.main([*flags])
    _, _, page = capsys.readouterr().out.partition("keys of configs/")
    keys = {match[1]: match[0] for match in re.finditer(r"^  --config\.([\w.]+)=.*$", page, re.MULTILINE)}
    return keys, [line for line in page.splitlines()[1:] if line not in keys.values()]


def test_help_with_a_config_shows_twenty_keys_in_groups_as_the_help_of_all_does(capsys, monkeypatch):
    changed = "--config.model.num_layers=7"
    first, others = lines_of_keys(capsys, monkeypatch, "--config=configs/lm.py", changed, "--help")
    every, _ = lines_of_keys(capsys, monkeypatch, "--config=configs/lm.py", changed, "--help", "all")
    assert len(first) == 20 and first.items() <= every.items() and len(every) > 150
    assert first["model.num_layers"].startswith("  --config.model.num_layers=4 (7) ")
    groups = [f"{group}:" for group in FIRST]
    assert [line for line in others if line] == [*groups, f"--help=all shows all {len(every)} keys."]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_first_keys_in_each_group(name):
    groups = first_keys([key.name for key in describe_keys(find_experiment(name).Config)])
    assert all(groups.values()) and 10 <= sum(map(len, groups.values())) <= 25


def test_every_first_key_is_one_of_an_experiment():
    names = {key.name for name in EXPERIMENTS for key in describe_keys(find_experiment(name).Config)}
    assert {name for keys in FIRST.values() for name in keys} <= names


def test_help_of_anything_else_is_refused(capsys):
    assert launch.main(["--config=configs/lm.py", "--help=al"]) == 2
    assert capsys.readouterr().err == "error: --help/-h: 'al'; did you mean 'all'?\n"
