"""Files of a run's folder that may be from anywhere: whatever is in them is read, or refused in a line."""

import errno
import json
import os
import re
import shutil

import pytest
import tokenizers

from commands.support import ending
from configs import lm
from experiments.vision import file_name
from tests import runs
from tests.training.checkpoints.test_checkpoint import trained
from transformer import safe_files
from transformer.config import to_values
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.logging.writers import MetricsFile, whole_lines
from transformer.visualization.evaluations import evaluations, read_evaluations
from workdir import lock as locks
from workdir import metrics, samples
from workdir.folder import check_resumable, read_fork, read_lengths, stored_config, stored_data
from workdir.opening import check_config
from workdir.provenance import read_starts
from workdir.recovery.rollback import read_rollbacks

DEEP = 100_000
CONTENTS = {
    "deep": "[" * DEEP,
    "deep objects": '{"step":' * DEEP,
    "a number": "5",
    "nothing": "null",
    "a list": "[]",
    "an object": "{}",
    "digits": '{"step": ' + "9" * 5000 + "}",
    "no UTF-8": b"\xff\xfe\x00",
    "empty": "",
    "a text": '"../../x"',
    "lists": "[[1]]",
    "a deeper text": '[["../../x", 1e400]]',
    "objects": '[{"step": "x"}, {"a": []}]',
    "infinite": '{"step": 1e400, "batch": 1e400}',
    "no number": '{"step": NaN, "rate": [[]], "batch": true}',
    "other kinds": '{"step": 1, "batch": 2, "rate": ["x", {}], "model": 3, "train": [], "version": {}}',
    "rates": '{"step": 1, "batch": 2, "rate": [1, 2, 3], "experiment": {"a": 1}, "data": {"cache_dir": []}}',
}


def read_metrics(folder: RunFolder) -> None:
    """As a run does that is resumed."""
    found = [line.encode() for line in whole_lines(folder.metrics, 9)]
    assert found in ([], [folder.metrics.read_bytes()])
    MetricsFile(RunFolder(folder.path), 9).close()


READERS = {
    "config.json": lambda folder: check_config(stored_config(folder)),
    "labels.json": lambda folder: stored_data(folder),
    "tokenizer.json": lambda folder: stored_data(folder),
    "tokenizer_config.json": lambda folder: stored_data(folder),  # beside the tokenizer
    "starts.json": read_starts,
    "lengths.json": lambda folder: read_lengths(folder, 5),
    "fork.json": lambda folder: read_fork(folder),
    "rollbacks.json": read_rollbacks,
    "metrics.jsonl": read_metrics,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that has started, with a config and a tokenizer."""
    path = tmp_path_factory.mktemp("run")
    with Checkpoints(path / "checkpoints") as checkpoints:
        checkpoints.save(3, trained(3)[0])
    with runs.in_root(tmp_path_factory):
        values = to_values(check_config(lm.get_config("tiny").to_dict()))
    (path / "config.json").write_text(json.dumps(values))
    Tokenizer.train("bytes").save(path / "tokenizer.json")
    return RunFolder(path)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", READERS)
def test_any_file_is_read_or_refused_in_a_line(folder, name, content):
    path, given = folder.path / name, CONTENTS[content]
    before = path.read_bytes() if path.exists() else None
    try:
        path.write_bytes(given if isinstance(given, bytes) else given.encode())
        READERS[name](folder)
    except UserError as error:
        assert "\n" not in str(error) and str(error)
    finally:
        path.unlink()
        if before is not None:
            path.write_bytes(before)


LABELS = ("../../planted", "/tmp/planted", "..", ".", "", "a/b", "x" * 5000, "a\nb", "naïve +1")


@pytest.mark.parametrize("label", LABELS)
def test_a_label_leads_nowhere(tmp_path, label):
    """By which the sample of a run on images is named."""
    path = tmp_path / file_name(label)
    path.write_text("")
    assert [*tmp_path.iterdir()] == [path] and path.suffix == ".png"
    assert path.stem == label or label != LABELS[-1]


def link(path, target):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path, _):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def huge(path, _):
    """A file of few bytes on the disk that says it has 6 GB."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    os.truncate(path, 6 << 30)


PLANTED = {
    "link": (link, "a link to "),
    "pipe": (pipe, "a pipe or a device; "),
    "huge": (huge, "6,442,450,944 bytes; expected at most "),
}
NAMES = ("config.json", "tokenizer.json", "metrics.jsonl", "samples/00000009.txt", "attention/00000009.png")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_file_of_the_run_is_refused_before_it_is_read(folder, tmp_path, name, kind):
    there = RunFolder(shutil.copytree(folder.path, tmp_path / "run"))
    stored_config(there)
    plant, said = PLANTED[kind]
    secret = tmp_path / "secret"
    secret.write_text("private")
    plant(there.path / name, secret)
    readers = [lambda: check_resumable(there, None), lambda: metrics(there.path), lambda: samples(there.path)]
    readers += [lambda: stored_config(there)] if name == "config.json" else []
    readers += [lambda: stored_data(there)] if name == "tokenizer.json" else []
    for read in readers:
        with pytest.raises(UserError, match=f"^{re.escape(str(there.path / name))}: {said}"):
            read()
    assert secret.read_text() == "private"


@pytest.mark.parametrize("name", ["samples", "events", "diverged"])
def test_a_folder_that_leads_elsewhere_is_not_written_to(folder, tmp_path, name):
    there = RunFolder(shutil.copytree(folder.path, tmp_path / "run"))
    (tmp_path / "elsewhere").mkdir()
    (there.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name}: a link to .*elsewhere; expected"):
        check_resumable(there, None)


def test_large_files_that_are_not_read_are_fine(folder, tmp_path):
    there = RunFolder(shutil.copytree(folder.path, tmp_path / "events"))
    huge(there.path / "events" / "of_a_long_run", None)
    huge(there.path / "notes.tar", None)
    there.vet()
    assert stored_config(there)["experiment"] == "language_modeling"


def test_a_link_to_the_checkpoints_of_another_run_is_not_trained_in(folder, tmp_path):
    """Its old checkpoints would be deleted by train.keep_last. A link to another disk is meant."""
    there = RunFolder(shutil.copytree(folder.path, tmp_path / "run"))
    shutil.rmtree(there.checkpoints)
    there.checkpoints.symlink_to(folder.checkpoints)
    with pytest.raises(UserError, match="a link to the checkpoints of another run"):
        check_resumable(there, None)
    there.checkpoints.unlink()
    there.checkpoints.symlink_to(shutil.copytree(folder.checkpoints, tmp_path / "disk"))
    there.vet_checkpoints()


@pytest.mark.parametrize("name", ["lock", "config.json.part"])
def test_a_planted_link_is_not_written_through(folder, tmp_path, name):
    there = RunFolder(shutil.copytree(folder.path, tmp_path / "run"))
    precious = tmp_path / "precious"
    precious.write_text("my thesis")
    (there.path / name).symlink_to(precious)
    with pytest.raises((UserError, OSError)) as raised:
        if name == "lock":
            with locks.holding(there.path / "lock"):
                pass
        else:
            replace(there.config, "{}")
    assert name != "lock" or "its lock is a link" in str(raised.value)
    assert precious.read_text() == "my thesis"


def test_a_file_system_without_locks_is_named_once(tmp_path, monkeypatch, capfd):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(safe_files.fcntl, "flock", flock)
    for _ in range(2):
        with locks.holding(tmp_path / "lock"):
            pass
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and f"{tmp_path}: its file system has no locks (Function not" in said


EVALUATIONS = (
    '["x"]',
    '[{"results": [1]}]',
    '[{"results": {"a": "b"}}]',
    '[{"steps": 5}]',
    "{}",
    "[[]]",
    "5",
)
EVALUATIONS += ('[{"about": "x"}]', '[{"keys": []}]', '[{"results": {"a": true}}]', "[" * DEEP)


@pytest.mark.parametrize("content", EVALUATIONS, ids=range(len(EVALUATIONS)))
def test_evaluations_of_other_kinds_are_refused_in_a_line(tmp_path, content):
    path = tmp_path / "evaluation.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"evaluation\.json: not a list of evaluations; move it away$"):
        [*evaluations(path)]


def test_evaluations_with_less_than_all_keys_are_shown(tmp_path):
    path = tmp_path / "evaluation.json"
    assert read_evaluations(path) == []
    entries = [{}, {"results": {"loss": 1, "none": None}, "about": {"loss": "of 3", "more": 4}}]
    path.write_text(json.dumps(entries))
    assert read_evaluations(path) == entries
    shown = "".join(map(str, evaluations(path)))
    assert "of 3" in shown and ": 4" in shown


def test_control_characters_of_a_name_do_not_reach_the_terminal(capfd):
    assert ending.code_of(UserError("config.d\x1b]0;x\x07: unknown\u202e key; naïve"), has_config=True) == 2
    assert capfd.readouterr().err == "error: config.d\\x1b]0;x\\x07: unknown\\u202e key; naïve\n"


def test_a_tokenizer_that_panics_is_a_line(capfd):
    """As an expression with too many ways to match raises it, derived from BaseException, below Rust."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    expression = tokenizers.Regex("(a+)+$")
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(expression, "isolated")
    with pytest.raises(BaseException, match="retry-limit") as raised:
        backend.encode("a" * 40 + "!")
    assert not isinstance(raised.value, Exception)
    capfd.readouterr()
    assert ending.code_of(raised.value, has_config=True) == 2
    assert capfd.readouterr().err.startswith("error: the tokenizer fails on this text (Onig: ")
