"""That processes with different configs, data or tokenizers all end before anything is written."""

import json
import os
import subprocess
import sys
import types

import pytest
import tokenizers

from commands import consistency, workdir
from tests import runs
from transformer import processes
from transformer.errors import UserError


@pytest.fixture
def others(monkeypatch):
    """What the other processes find, by which `gathered` is simulated."""
    found = []

    def gathered(text):
        is_digest = not text.startswith("{")
        return [text, *(workdir.digest(each) if is_digest else json.dumps(each) for each in found)]

    monkeypatch.setattr(processes, "gathered", gathered)
    return found


def test_the_same_is_accepted_in_any_order(others):
    others += [{"b": [1, 2], "a": None}] * 2
    consistency._check_same({"a": None, "b": [1, 2]}, "")


def test_an_error_has_the_values_of_all_processes(others):
    others += [{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": "x"}]
    with pytest.raises(UserError) as error:
        consistency._check_same({"a": 1, "b": 2}, "give all the same")
    assert str(error.value) == (
        "the processes differ in b (2 on processes 0, 1, 3 on process 2), "
        "c (missing on processes 0, 1, 'x' on process 2); give all the same"
    )


def test_a_long_list_is_cut(others):
    others += [{f"key {i}": 1 for i in range(9)}] * 6
    with pytest.raises(UserError) as error:
        consistency._check_same({f"key {i}": 0 for i in range(9)}, "")
    assert "key 3 (0 on process 0, 1 on processes 1, 2, 3, 4 and 2 more) and 5 more; " in str(error.value)


def test_files_are_named_with_their_sizes(others):
    others.append({"data.source: a.txt": [2000, "beefbeef"]})
    sources = {"source": {"a.txt": [1000, "deadbeef"]}}
    data = types.SimpleNamespace(contents=lambda: sources, kept=dict)
    wanted = r"source: a.txt \(1,000 bytes deadbe on process 0, 2,000 bytes beefbe on process 1\); all proc"
    with pytest.raises(UserError, match=wanted):
        consistency.check_data(data, {})


def test_the_data_of_further_evaluation_sets_are_compared(others):
    here, there = {"data.source: a.txt": [1, "a"]}, {"evaluate.sets.wiki: b.txt": [2000, "beefbeef"]}
    others.append(here | there)
    files = types.SimpleNamespace(content={"b.txt": [1000, "deadbeef"]})
    asked = []
    data = types.SimpleNamespace(
        contents=lambda: {"source": {"a.txt": [1, "a"]}},
        kept=dict,
        sources=lambda split: asked.append(split) or [files],
    )
    wanted = r"differ in evaluate.sets.wiki: b.txt \(1,000 bytes deadbe on process 0, 2,000 bytes beefbe on"
    with pytest.raises(UserError, match=wanted):
        consistency.check_data(data, {"wiki": "text:b.txt"})
    assert asked == ["validation of text:b.txt"]


LOCAL = [
    "--config=configs/lm.py:tiny",
    "--config.data.source=text:text/*.txt",
    "--config.data.tokenizer=t.json",
]


def started(folders, options, workdirs):
    """What two processes in these folders say, and their exit codes."""
    place = [f"--coordinator=localhost:{runs.free_port()}", "--num_processes=2"]
    command = [sys.executable, str(runs.ROOT / "launch.py"), *LOCAL, *place]
    begun = [
        subprocess.Popen(
            [*command, f"--process_id={number}", f"--workdir={workdir}", *more],
            cwd=folder,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, (folder, more, workdir) in enumerate(zip(folders, options, workdirs, strict=True))
    ]
    try:
        said = [process.communicate(timeout=120) for process in begun]
    finally:
        for process in begun:
            process.kill()
    errors = [[line for line in error.splitlines() if line.startswith("error: ")] for _, error in said]
    return [process.returncode for process in begun], errors, said


def tokenizer(words):
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, "[UNK]")
    return tokenizers.Tokenizer(model).to_str()


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("differs", ["config", "data", "sets", "tokenizer", "folder", "missing"])
def test_all_processes_end_with_one_line_that_names_what_differs(tmp_path, differs):
    """Two hosts with disks of their own, in the folders 0 and 1, and a shared one."""
    folders, workdirs = [tmp_path / "0", tmp_path / "1"], [tmp_path / "run"] * 2
    for number, folder in enumerate(folders):
        (folder / "text").mkdir(parents=True)
        for i in range(20):
            (folder / "text" / f"{i}.txt").write_text(f"alpha beta {i}\n" * 9)
        words = "beta alpha" if differs == "tokenizer" and number else "alpha beta"
        (folder / "t.json").write_text(tokenizer(words.split()))
    options = [[], []]
    if differs == "config":
        options[1] = ["--config.seed=7", "--config.data.workers=1"]
        wanted = "the processes differ in config.seed (0 on process 0, 7 on process 1); start all"
    elif differs == "data":
        (folders[1] / "text" / "3.txt").write_text("alpha gamma 3\n" * 9)
        wanted = "the processes differ in data.source: 3.txt (117 bytes "
    elif differs == "sets":
        for number, folder in enumerate(folders):
            (folder / "wiki.txt").write_text(f"alpha beta {number}\n" * 99)
        options = [["--config.evaluate.sets.wiki=text:wiki.txt"]] * 2
        wanted = "the processes differ in evaluate.sets.wiki: wiki.txt (1,287 bytes "
    elif differs == "tokenizer":
        wanted = "the processes differ in tokenizer ('"
    elif differs == "folder":
        workdirs[1] = folders[1] / "run"
        workdirs[1].mkdir()
        (workdirs[1] / "config.json").write_text("{}")
        wanted = "the processes differ in config.json (False on process 0, True on process 1); --workdir: "
    else:
        (folders[1] / "t.json").unlink()
        wanted = "t.json"
    codes, errors, said = started(folders, options, workdirs)
    assert codes == [2, 2], said
    assert [len(lines) for lines in errors] == [1, 1] and all(wanted in lines[0] for lines in errors)
    assert errors[0] == errors[1] or differs in ("folder", "missing")
    assert errors[0][0].startswith("error: process 1: ") == (differs == "missing")
    assert not (tmp_path / "run").exists()
