"""Files of a run's folder that may be from anywhere: whatever is in them is read, or refused in a line."""

import json

import pytest

from commands.opening import check_config
from commands.rollback import read_rollbacks
from commands.starts import read_starts
from commands.workdir import Workdir
from configs import lm
from experiments.vision import file_name
from tests import runs
from tests.training.test_checkpoint import trained
from transformer.config import to_values
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.checkpoint import Checkpoints
from transformer.training.writers import MetricsFile, whole_lines

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


def read_metrics(folder: Workdir) -> None:
    """As a run does that is resumed."""
    found = [line.encode() for line in whole_lines(folder.metrics, 9)]
    assert found in ([], [folder.metrics.read_bytes()])
    MetricsFile(RunFolder(folder.path), 9).close()


READERS = {
    "config.json": lambda folder: check_config(folder.read_config()),
    "labels.json": lambda folder: folder.read_kept(),
    "tokenizer.json": lambda folder: folder.read_kept(),
    "tokenizer_config.json": lambda folder: folder.read_kept(),  # beside the tokenizer
    "starts.json": read_starts,
    "lengths.json": lambda folder: folder.read_lengths(5),
    "fork.json": lambda folder: folder.read_fork(),
    "rollbacks.json": read_rollbacks,
    "metrics.jsonl": read_metrics,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that has begun, with a config and a tokenizer."""
    path = tmp_path_factory.mktemp("run")
    with Checkpoints(path / "checkpoints") as checkpoints:
        checkpoints.save(3, trained(3)[0])
    with runs.in_root(tmp_path_factory):
        values = to_values(check_config(lm.get_config("tiny").to_dict()))
    (path / "config.json").write_text(json.dumps(values))
    Tokenizer.train("bytes").save(path / "tokenizer.json")
    return Workdir(path)


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
