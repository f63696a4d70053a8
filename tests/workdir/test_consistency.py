"""That processes with different code, configs, data or tokenizers all end before anything is written."""

import json
import os
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import jax
import pytest
import tokenizers

from tests import runs
from transformer import distributed
from transformer.errors import UserError
from workdir import folder as workdir
from workdir.compatibility import consistency


@pytest.fixture
def others(monkeypatch):
    """What the other processes find, by which `gathered` is simulated."""
    found = []

    def gathered(text):
        is_digest = not text.startswith("{")
        return [text, *(workdir.digest(each) if is_digest else json.dumps(each) for each in found)]

    monkeypatch.setattr(distributed, "gather_texts", gathered)
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder that is not there yet, whose check does not wait."""
    monkeypatch.setattr(consistency, "APPEAR_SECONDS", 0.3)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    return workdir.RunFolder(tmp_path / "runs" / "run")


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_shared_if_the_others_read_what_the_first_process_writes(folder, monkeypatch, there):
    if there:
        folder.path.mkdir(parents=True)
    seen = []

    def gathered(text):
        if text.startswith(".shared-"):
            seen.append((folder.path / text).exists())
        return [text, text]

    monkeypatch.setattr(distributed, "gather_texts", gathered)
    consistency.check_folder(folder)
    assert seen == [True] and folder.path.exists() == folder.path.parent.exists() == there
    assert not there or not [*folder.path.iterdir()]


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_the_others_cannot_read_is_refused_and_left_as_it_was(folder, monkeypatch, there):
    if there:
        folder.path.mkdir(parents=True)
    answers = iter([["", ""], ["name", ""], ["", "it is not there"]])
    monkeypatch.setattr(distributed, "gather_texts", lambda text: next(answers))
    monkeypatch.setattr(consistency, "_appears", lambda path: True)
    with pytest.raises(UserError, match="share: process 1 cannot read what process 0 writes there"):
        consistency.check_folder(folder)
    assert folder.path.parent.exists() == there and not [*folder.path.parent.glob("run/*")]


def test_a_process_that_cannot_read_the_folder_tells_the_others(folder, monkeypatch):
    monkeypatch.setattr(distributed, "gather_texts", lambda text: [text, ""])
    monkeypatch.setattr(consistency, "_appears", lambda path: False)
    with pytest.raises(UserError, match="share: process 0 cannot read what process 0 writes there"):
        consistency.check_folder(folder)


def test_a_file_that_another_host_writes_may_come_late(tmp_path, monkeypatch):
    monkeypatch.setattr(consistency, "APPEAR_SECONDS", 5)
    threading.Timer(0.3, (tmp_path / "token").touch).start()
    assert consistency._appears(tmp_path / "token")
    monkeypatch.setattr(consistency, "APPEAR_SECONDS", 0.1)
    assert not consistency._appears(tmp_path / "none")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A small repository in place of this one, without another process that runs other code."""
    for name in (
        "launch.py",
        "transformer/training/step.py",
        "transformer/.backup/step.py",
        "configs/mine.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("RATE = 1\n")
    monkeypatch.setattr(consistency, "ROOT", tmp_path)
    monkeypatch.setattr(distributed, "gather_texts", lambda text: [text])
    return tmp_path


def code_of(monkeypatch, *files):
    """What `check_code` compares: the files, and the libraries and settings."""
    compared = []
    monkeypatch.setattr(consistency, "_check_same", lambda found, remedy: compared.append(found))
    consistency.check_code(*files)
    return compared


@pytest.mark.thorough
def test_the_code_of_all_packages_and_of_the_programs_given_is_compared(repository, monkeypatch):
    names = {"launch.py", "transformer/training/step.py", "configs/mine.py"}
    before, _ = code_of(monkeypatch, "", "configs/mine.py", "configs/none.py")
    assert {name for name in before if not name.startswith("the module")} == names
    for name in names:
        (repository / name).write_text("RATE = 2\n")
        after, _ = code_of(monkeypatch, "configs/mine.py")
        assert [key for key in before if before[key] != after[key]] == [name]
        before = after


@pytest.mark.thorough
def test_the_code_of_imported_modules_is_compared_and_of_installed_ones_the_version(
    repository, monkeypatch, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mixer_of_mine.py").write_text("RATE = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert "the module mixer_of_mine" not in code_of(monkeypatch)[0]
    monkeypatch.setitem(sys.modules, "mixer_of_mine", __import__("mixer_of_mine"))
    code, others = code_of(monkeypatch)
    assert code["the module mixer_of_mine"][0] == len("RATE = 1\n")
    assert not {"the module json", "the module numpy"} & code.keys()
    assert others["numpy"] == __import__("numpy").__version__ and "python" in others


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "value", "differs"),
    [
        ("XLA_FLAGS", "--xla_gpu_deterministic_ops=true", True),
        ("XLA_FLAGS", "--xla_dump_to=/tmp/dump --xla_dump_hlo_as_text", False),
        ("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=98304", True),
    ],
)
def test_settings_that_change_what_is_computed_are_compared(repository, monkeypatch, name, value, differs):
    monkeypatch.delenv(name, raising=False)
    _, before = code_of(monkeypatch)
    monkeypatch.setenv(name, value)
    assert (code_of(monkeypatch)[1] != before) == differs


@pytest.mark.thorough
def test_a_setting_of_jax_is_compared(repository, monkeypatch):
    _, before = code_of(monkeypatch)
    with jax.default_matmul_precision("highest"):
        _, after = code_of(monkeypatch)
    assert [key for key in before if before[key] != after[key]] == ["jax_default_matmul_precision"]


LOCAL = [
    "--config=configs/lm.py:tiny",
    "--config.data.source=text:text/*.txt",
    "--config.data.tokenizer=t.json",
]


def started(folders, more, workdirs, roots=(runs.ROOT,) * 2, base=LOCAL):
    """What two processes in these folders say, with the code of these roots, and their exit codes."""
    place = [f"--coordinator=localhost:{runs.free_port()}", "--num_processes=2"]
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    begun = [
        subprocess.Popen(
            [sys.executable, root / "launch.py", *base, *place, f"--process_id={number}", *options],
            cwd=folder,
            env=os.environ | settings | {"PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, (folder, workdir, root) in enumerate(zip(folders, workdirs, roots, strict=True))
        for options in [[f"--workdir={workdir}", *more[number]]]
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
@pytest.mark.parametrize("differs", ["config", "data", "sets", "tokenizer", "folder", "made", "missing"])
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
    elif differs in ("folder", "made"):
        workdirs = [folder / "runs" / "run" for folder in folders]
        for workdir in workdirs if differs == "made" else ():
            workdir.mkdir(parents=True)
        wanted = "on a disk that all processes share: process 1 cannot read what process 0 writes there"
    else:
        (folders[1] / "t.json").unlink()
        wanted = "t.json"
    codes, errors, said = started(folders, options, workdirs)
    assert codes == [2, 2], said
    assert [len(lines) for lines in errors] == [1, 1] and all(wanted in lines[0] for lines in errors)
    assert errors[0] == errors[1] or differs in ("folder", "made", "missing")
    there = [*(tmp_path.glob("*/runs/**/*") if differs == "made" else tmp_path.glob("*/runs"))]
    assert [path.name for path in there] == ["run"] * len(there)
    assert errors[0][0].startswith("error: process 1: ") == (differs == "missing")
    assert not (tmp_path / "run").exists()


CONFIG = """
import mixer_of_mine
from configs.lm import get_config as base

def get_config():
    return base("tiny")
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize(
    ("changed", "mode"),
    [
        ("transformer/training/step.py", "train"),
        ("transformer/training/step.py", "evaluate"),
        ("configs/lm.py", "train"),
        ("added.py", "evaluate"),
        ("mixer_of_mine.py", "train"),
    ],
)
def test_processes_with_other_code_end_before_anything_is_written(tmp_path, changed, mode):
    """The repository and the user's own files, of which a line differs between two hosts."""
    roots, run = [tmp_path / "0", tmp_path / "1"], tmp_path / "run"
    for root in roots:
        for name in (*consistency.PACKAGES, "configs"):
            shutil.copytree(runs.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(runs.ROOT / "launch.py", root)
        (root / "added.py").write_text("")
        (root / "mixer_of_mine.py").write_text("")
        (root / "own.py").write_text(CONFIG)
    with Path(roots[1], changed).open("a") as file:
        file.write("RATE = 2\n")
    options = [f"--mode={mode}", "--include=added.py"]
    options += ["--config=own.py" if "mixer" in changed else "--config=configs/lm.py:tiny"] * (
        mode == "train"
    )
    codes, errors, said = started(roots, [options] * 2, [run] * 2, roots, base=())
    assert codes == [2, 2], said
    name = "the module mixer_of_mine" if changed == "mixer_of_mine.py" else changed
    for (line,) in errors:
        assert line.startswith(f"error: the processes differ in {name} ("), line
        assert line.endswith("; all processes must run the same code: check out one commit on all hosts")
    assert not run.exists()
