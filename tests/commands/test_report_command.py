"""`--mode=report`, and what training writes of its starts."""

import json
import re
import shlex
import shutil
from html import unescape

import pytest

import launch
from tests import runs
from transformer.run_folder import RunFolder
from workdir import api as notebook
from workdir.provenance import read_starts

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, in_root):
    """A run that was started, and continued once."""
    folder = tmp_path_factory.mktemp("report")
    source = runs.write_corpus(folder / "text")
    for steps in (2, 3):
        keys = [f"--config.train.steps={steps}", "--config.sample.prompt=<script>alert(1)</script>"]
        assert launch.main(runs.tiny(source, folder / "run", *keys)) == 0
    return folder / "run"


def text_of(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    return unescape(re.sub(r"<[^>]+>", "\n", re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)))


def test_training_writes_it_with_each_start(trained):
    starts = read_starts(RunFolder(trained))
    assert [each["step"] for each in starts] == [0, 2]
    for steps, each in zip((2, 3), starts, strict=True):
        assert f"--config.train.steps={steps}" in each["command"] and " x " in each["devices"]
        assert {"python", "jax", "flax"} <= each["versions"].keys() and each["cores"] >= 1
    shown, page = text_of(trained), (trained / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<script>alert(1)</script>" in shown
    for said in ("language modeling: ", "3 of 3 steps", "model.d_model", starts[1]["command"], "From step 2"):
        assert said in shown
    assert json.loads((trained / "data.json").read_text())["tokenizer"] in shown


@pytest.mark.thorough
def test_the_command_that_it_prints_trains_the_same_run_again(trained, monkeypatch, capsys):
    monkeypatch.setattr(notebook, "settle", lambda: None)
    (said,) = re.findall(r"^python -c .*$", text_of(trained), re.MULTILINE)
    python, flag, code = shlex.split(said)
    assert (python, flag) == ("python", "-c")
    exec(compile(code, "again", "exec"), {})
    again = trained.with_name("run-again")
    assert json.loads((again / "config.json").read_text()) == json.loads(
        (trained / "config.json").read_text()
    )
    assert read_starts(RunFolder(again))[0]["command"] == ""  # not from the command line


def test_the_mode_adds_a_later_evaluation(trained, capsys):
    assert "95 % interval" not in text_of(trained)
    assert launch.main([f"--workdir={trained}", "--mode=evaluate"]) == 0
    capsys.readouterr()
    assert launch.main([f"--workdir={trained}", "--mode=report"]) == 0
    assert capsys.readouterr().out == f"{trained}/report.html\n"
    assert "95 % interval" in text_of(trained) and "validation split of text:" in text_of(trained)
    assert "gzip -9" in text_of(trained)  # the baselines, as at the end of training


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--config.seed=1"], "--config.seed: --mode=report changes no keys"),
        (["--workdir=nowhere"], "nowhere does not exist"),
        (["--output=nowhere/report.html"], "--output: there is no folder 'nowhere'"),
        (["--output=tests"], "--output: tests is a folder; expected a file"),
    ],
)
def test_mistakes_are_one_line(trained, flags, said, capsys):
    assert launch.main([f"--workdir={trained}", "--mode=report", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_file_of_starts_is_named(trained, capsys):
    before = (trained / "starts.json").read_bytes()
    (trained / "starts.json").write_text("{}")
    assert launch.main([f"--workdir={trained}", "--mode=report"]) == 2
    assert "starts.json: expected a list of the starts" in capsys.readouterr().err
    (trained / "starts.json").write_bytes(before)


def test_a_planted_link_is_not_written_through(trained, tmp_path, capfd):
    folder = shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "precious").write_text("my thesis")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(tmp_path / "precious")
    assert launch.main([f"--workdir={folder}", "--mode=report"]) == 2
    assert f"error: {folder}/report.html: a link to {tmp_path}/precious; " in capfd.readouterr().err
    assert (tmp_path / "precious").read_text() == "my thesis"
