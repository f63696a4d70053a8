"""Configs as they are printed, and found from any folder."""

import json

import pytest

import launch
from tests import runs
from transformer.config import flatten, to_values
from transformer.config_help import describe_keys
from workdir.opening import check_config, read_config

pytestmark = pytest.mark.usefixtures("in_root")


def printed(capsys, *arguments: str) -> dict[str, str]:
    """The lines by their keys."""
    capsys.readouterr()
    assert launch.main(["--mode=config", *arguments]) == 0
    return dict(line.split(" = ", 1) for line in capsys.readouterr().out.splitlines())


def test_a_whole_config_is_printed_and_what_differs_is_marked(capsys):
    found = printed(capsys, "--config=configs/lm.py:tiny", "--config.model.num_layers=7")
    config = check_config(read_config("configs/lm.py:tiny"))
    assert list(found) == [key.name for key in describe_keys(type(config))]
    assert found["model.d_model"].split() == ["32", "#", "default:", "256"]
    assert found["model.num_layers"].startswith("7 ") and "# default: 4" in found["model.num_layers"]
    assert found["model.num_kv_heads"] == "0" and found["experiment"] == "'language_modeling'"


def test_the_config_of_a_folder_is_printed(capsys, tmp_path):
    values = to_values(check_config(read_config("configs/lm.py:tiny")))
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = printed(capsys, f"--workdir={tmp_path}")
    assert found["data.tokenizer"].startswith("'bytes' ") and "# default: 'bpe'" in found["data.tokenizer"]
    assert launch.main(["--mode=config", "--config=configs/lm.py", "--config.model.d_modle=1"]) == 2
    assert "config.model.d_modle: unknown key" in capsys.readouterr().err


def test_help_of_all_with_a_config_lists_every_key_with_default_value_and_meaning(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit) as end:
        launch.main(["--config=configs/lm.py", "--help=all"])
    out = capsys.readouterr().out
    config = check_config(read_config("configs/lm.py"))
    values = flatten(to_values(config))
    assert end.value.code == 0
    for key in describe_keys(type(config)):
        (line,) = [line for line in out.splitlines() if line.strip().startswith(f"--config.{key.name}=")]
        valid = "; ".join(filter(None, [key.bound, key.condition]))
        assert repr(key.default) in line and key.meaning
        assert line.endswith(f"# {key.meaning}" + (f" [{valid}]" if valid else ""))
        assert key.name not in values or values[key.name] == key.default or repr(values[key.name]) in line


def test_help_says_bounds(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit):
        launch.main(["--config=configs/lm.py", "--help=all"])
    lines = capsys.readouterr().out.splitlines()
    norms = "one of 'layer', 'rms', 'rms_offset', 'none'"
    latent = "0 or more; only with mixer 'latent'"
    said = {"model.d_model": "at least 1", "model.norm": norms, "model.latent_dim": latent}
    for key, bound in said.items():
        (line,) = [line for line in lines if line.strip().startswith(f"--config.{key}=")]
        assert line.endswith(f" [{bound}]")


def test_config_files_are_found_from_any_folder(monkeypatch, tmp_path, capsys):
    here = read_config("configs/lm.py:tiny")
    monkeypatch.chdir(tmp_path)
    assert read_config("configs/lm.py:tiny") == here
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "lm.py").write_text("def get_config():\n    return 1 / 0\n")
    assert launch.main(["--config=configs/lm.py"]) == 2  # the one that is here comes first
    assert "configs/lm.py, line 2: ZeroDivisionError" in capsys.readouterr().err
    assert str(runs.ROOT) not in capsys.readouterr().err
