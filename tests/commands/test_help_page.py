"""Help is as wide as the terminal, and what it shows is what a shell runs."""

import re
import shlex

import pytest

import launch
from commands import COMMANDS, config, find_command
from commands.help_page import fold


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
def test_the_keys_of_a_config_fit_too(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    config.explain("configs/lm.py", [])
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
