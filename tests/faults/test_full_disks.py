"""Disks that are full, slow or gone while a run is in training: nothing that was saved is lost."""

import errno
import json
import os
import shutil
import struct
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import launch
from tests import runs
from tests.faults import disks
from tests.training import test_loop
from tests.training.toy import assert_same
from transformer.errors import StorageError
from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.training.checkpoints import resilience
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.resilience import FolderIdentity, ResilientCheckpoints
from transformer.training.checkpoints.storage import AppendFile
from transformer.training.hooks import Hook, Samples
from transformer.training.logging.events import event_files
from transformer.training.logging.retrying_writer import RetryingWriter
from transformer.training.logging.writers import MetricsFile, make_writers

# Orbax leaves tasks whose errors no one reads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Do(Hook):
    """Calls a function after each step."""

    def __init__(self, action):
        super().__init__(1)
        self.action = action

    def __call__(self, step, state, metrics):
        return self.action(step)


def events(directory: Path) -> Iterator[Any]:
    """The events in the files of a folder, the checksums of which are right, as TensorBoard reads them: file
    by file in the order of their names."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    for path in event_files(directory):
        rest = path.read_bytes()
        while rest:
            (size,) = struct.unpack("<Q", rest[:8])
            data = rest[12 : 12 + size]
            assert struct.unpack("<II", rest[8:12] + rest[12 + size : 16 + size]) == (
                masked_crc32c(rest[:8]),
                masked_crc32c(data),
            )
            yield Event.FromString(data)
            rest = rest[16 + size :]


def shown(directory: Path) -> list[tuple[int, str]]:
    """(step, name) of what TensorBoard shows of the events of a folder: a start of a session hides all before
    it from its step on. The first one does so in its `event_accumulator`, and not in its
    `plugin_event_accumulator`, which serves the page: both show the same."""
    found: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
    started = False
    for event in events(directory):
        if event.session_log.status == event.session_log.START:
            for first, each in found.items():
                if first or started:
                    each[:] = [(step, name) for step, name in each if step < event.step]
            started = True
        for each in found.values():
            each += [(event.step, value.tag) for value in event.summary.value]
    assert found[True] == found[False]
    return found[True]


def test_training_goes_on_while_the_disk_is_full(tmp_path, capfd, monkeypatch):
    """From step 5 to 8 there is no room: the checkpoint before stays, and nothing that is logged is lost."""
    monkeypatch.setattr(resilience, "RETRY_SECONDS", 1e9)
    with disks.small(tmp_path / "disk", "1m") as disk:
        seen = {}

        def act(step):
            checkpoints.wait_quietly()
            if 5 <= step < 9:
                disks.fill(disk)
            if step == 9:
                (disk / "ballast").unlink()
            seen[step] = sorted(checkpoints.written())
            return {f"more/{number}": float(number) for number in range(99)}

        class Quiet(Checkpoints):
            def wait_quietly(self):
                while self.is_saving():
                    time.sleep(0.01)

        folder = RunFolder(disk)
        with Quiet(folder.checkpoints, keep_last=2) as checkpoints:
            keys = types.SimpleNamespace(sample_every=2, writers="jsonl")
            hooks = [Do(act), Samples(keys, folder, lambda params: "a sample")]
            state, reason = test_loop.run(
                12, checkpoints=checkpoints, hooks=hooks, writers=make_writers(folder, 0),
                checkpoint_every=2, log_every=1,
            )  # fmt: skip
            assert reason == "finished" and checkpoints.steps() == [10, 12]
            assert_same(jax.device_get(state), jax.device_get(checkpoints.restore(test_loop.toy()[1])))
        assert seen[5] == seen[9] == [2, 4] and not list(folder.checkpoints.glob("*tmp*"))
        assert [line["step"] for line in test_loop.lines(disk)] == [*range(1, 13)]
        losses = [step for step, name in shown(folder.events) if name == "train/loss"]
        assert losses == [*range(1, 13)]
        names = sorted(path.name for path in folder.samples.iterdir())
        assert names == [f"{step:08d}.txt" for step in (2, 4, 10, 12)]
    said = capfd.readouterr().err
    for what in (
        f"warning: {folder.checkpoints}: step 6 could not be saved (No space left on device); "
        "the last one is of step 4\n",
        "warning: MetricsFile: values since step",
        "warning: MetricsFile: all values are written again\n",
        "warning: step 10 is saved again\n",
        f"warning: {folder.samples}/00000006.txt could not be written (No space left on device)\n",
    ):
        assert said.count(what) == 1, said
    assert "Traceback" not in said


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_that_cannot_save_its_end_says_so_and_goes_on_when_it_can(tmp_path, capfd):
    """With exit code 1, and then as the run that nothing disturbed."""
    source = runs.write_corpus(tmp_path / "corpus")
    keys = ("--config.train.steps=8", "--config.train.checkpoint_every=3", "--config.train.log_every=1")
    with disks.small(tmp_path / "disk", "1500k") as disk:
        command = runs.tiny(source, disk / "run", *keys, "--config.train.evaluate_every=4")
        original = Checkpoints.save

        def save(self, step, *arguments):
            original(self, step, *arguments)
            if step == 3:
                self.wait()
                disks.fill(disk)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "save", save)
            assert launch.main(command) == 1
        said = capfd.readouterr().err
        assert said.splitlines()[-1] == (
            f"error: {disk}/run/checkpoints: step 8 could not be saved (No space left on device); "
            "the last one is of step 3; the same command continues from there"
        )
        assert "Traceback" not in said and not list((disk / "run").rglob("*.part"))
        assert launch.main(command) == 1  # nor can it start
        assert "No space left on device" in capfd.readouterr().err.splitlines()[-1]
        (disk / "ballast").unlink()
        assert launch.main(command) == 0
        assert "from step 3 to 8" in capfd.readouterr().out
        whole = runs.tiny(source, tmp_path / "whole", *keys, "--config.train.evaluate_every=4")
        assert launch.main(whole) == 0
        assert_same(runs.state(disk / "run"), runs.state(tmp_path / "whole"))
        here, there = (test_loop.lines(path) for path in (disk / "run", tmp_path / "whole"))
        assert [(x["step"], x["train/loss"], x.get("eval/loss")) for x in here] == [
            (x["step"], x["train/loss"], x.get("eval/loss")) for x in there
        ]


class Fake:
    """Checkpoints of which some fail, and whose writing takes as long as the test says."""

    def __init__(self, folder, failing=()):
        self.directory, self.failing = str(folder / "checkpoints"), failing
        self.done, self.begun, self.reopened, self.saving = [], None, 0, False

    def save(self, step, state, metrics=None):
        if step in self.failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.begun = step

    def wait(self):
        self.done.append(self.begun)

    def written(self):
        return self.done

    def is_saving(self):
        return self.saving

    def reopen(self):
        self.reopened += 1


def test_a_save_that_failed_is_tried_again(tmp_path, monkeypatch):
    """Without a disk: at the next save that is due, or after a minute; at the end it is an error."""
    now, said = [0.0], []
    monkeypatch.setattr(resilience, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    fake = Fake(tmp_path, failing=(4, 6))
    saves = ResilientCheckpoints(fake, said.append)
    assert not saves.is_late()
    for step in (2, 4):
        saves.save(step, None)
    assert fake.done == [2] and fake.reopened == 1 and not saves.is_late()
    with pytest.raises(
        StorageError, match=r"step 4 could not be saved \(No space .*\); the last one is of step 2"
    ):
        saves.finish()
    now[0] = 61.0
    assert saves.is_late()
    saves.save(5, None)
    assert not saves.is_late()
    saves.finish()
    assert fake.done == [2, 5] and said[1:] == ["step 5 is saved again"]
    saves.close()


def test_slow_storage_is_waited_for_only_so_long(tmp_path, monkeypatch):
    """5 % of the time of training, or ten seconds if that is more; what must be saved is waited for."""
    now, said = [0.0], []

    def sleep(seconds):
        now[0] += seconds
        fake.saving = fake.saving and now[0] < ready[0]

    monkeypatch.setattr(resilience, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    fake, ready = Fake(tmp_path), [0.0]
    saves, waited = ResilientCheckpoints(fake, said.append), 0.0
    for step in range(1, 1001):  # a step takes a second, to save takes 90, and every tenth is to be saved
        now[0] += 1
        fake.saving = fake.saving and now[0] < ready[0]
        saves.report_failure()
        if step % 10 == 0 or saves.is_late():
            start, before = now[0], fake.begun
            saves.save(step, None, at_once=False)
            waited += now[0] - start
            assert waited < max(10, 0.05 * now[0]) + 0.1
            if fake.begun != before:
                fake.saving, ready[0] = True, now[0] + 90
    assert waited > 0.04 * now[0] and len(fake.done) >= 10
    assert said[0] == "the checkpoint of step 10 is still being written: the next one is put off"
    fake.saving = False
    saves.close()


def test_what_is_appended_is_there_whole_or_not_at_all(tmp_path):
    with disks.small(tmp_path / "disk", "16k") as disk:
        file, content = AppendFile(disk / "file"), b""
        with pytest.raises(OSError, match="No space"):
            for number in range(10_000):
                piece = str(number).encode() * 7
                file.write(piece)
                content += piece
        assert (disk / "file").read_bytes() == content and len(content) > 10_000
        with pytest.raises(OSError, match="No space"):
            file.write(bytes(9000), at=len(content) - 3)
        assert (disk / "file").read_bytes() == content
        file.write(b"x", at=len(content) - 3)
        assert (disk / "file").read_bytes() == content[:-3] + b"x"
        file.close()
        with pytest.raises(OSError, match="No space") as caught:
            replace(disk / "file", "y" * 99_999)
        assert caught.value.filename == str(disk / "file")
        assert (disk / "file").read_bytes() == content[:-3] + b"x"
        assert [path.name for path in disk.iterdir()] == ["file"]


def test_a_writer_that_fails_is_written_to_again(tmp_path):
    """Without a disk; also a merged line, and what is still kept at the end."""
    said, full = [], [False]
    file = MetricsFile(RunFolder(tmp_path), 0)
    write = file._file.write

    def failing(*arguments):
        if full[0]:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        write(*arguments)

    file._file.write = failing
    writer = RetryingWriter(file, said.append)
    for step in (1, 2, 3, 4):
        full[0] = step == 2
        writer.write(step, {"a": step})
        writer.write(step, {"b": step})
    assert test_loop.lines(tmp_path) == [{"step": n, "a": n, "b": n} for n in (1, 2, 3, 4)]
    full[0] = True
    writer.write(5, {"a": 5})
    writer.close()
    assert said == [
        "MetricsFile: values since step 2 cannot be written (Disk quota exceeded) and are kept",
        "MetricsFile: all values are written again",
        "MetricsFile: values since step 5 cannot be written (Disk quota exceeded) and are kept",
        "MetricsFile: values since step 5 are lost",
    ]


def test_a_folder_is_known_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    folder_identity = FolderIdentity(folder)
    assert folder_identity.is_unchanged()
    folder.rename(tmp_path / "moved")
    assert not folder_identity.is_unchanged()
    folder.mkdir()
    assert not folder_identity.is_unchanged()
    folder.rmdir()
    (tmp_path / "moved").rename(folder)
    assert folder_identity.is_unchanged()
    folder_identity.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_removed_ends_the_run_and_stays_removed(tmp_path, again):
    """Also if there is a different one in its place, which may be in training."""
    folder = tmp_path / "run"

    def act(step):
        if step == 3:
            checkpoints.wait()  # else it may be written on into a folder that is made again
            shutil.rmtree(folder)
            if again:
                folder.mkdir()

    with (
        pytest.raises(StorageError, match=rf"^{folder} was removed or moved while it was in training"),
        Checkpoints(folder / "checkpoints") as checkpoints,
    ):
        test_loop.run(9, checkpoints=checkpoints, hooks=[Do(act)], checkpoint_every=2)
    assert folder.exists() == again and not list(tmp_path.rglob("*/*"))


def test_checkpoints_that_are_deleted_are_saved_anew(tmp_path):
    def act(step):
        if step == 5:
            checkpoints.wait()
            shutil.rmtree(tmp_path / "checkpoints")

    with Checkpoints(tmp_path / "checkpoints", keep_last=2) as checkpoints:
        _, reason = test_loop.run(9, checkpoints=checkpoints, hooks=[Do(act)], checkpoint_every=2)
        assert reason == "finished" and 9 in checkpoints.written()
        checkpoints.restore(test_loop.toy()[1])


def workdirs(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    return {
        tmp_path / "file": "is a file",
        tmp_path / "file" / "run": "cannot be written (Not a directory)",
        tmp_path / "dangling": f"cannot be written (a link to {tmp_path}/nowhere, which is not there)",
    }


@pytest.mark.usefixtures("in_root")
def test_folders_that_cannot_be_written_are_refused_in_a_line(tmp_path, capfd):
    source = runs.write_corpus(tmp_path / "corpus")
    with disks.small(tmp_path / "readonly", "8k", "ro") as disk:
        cannot = {disk / "run": "cannot be written (Read-only file system)"} | workdirs(tmp_path)
        for folder, why in cannot.items():
            capfd.readouterr()
            for more in ([], ["--mode=sweep", "--sweep=seed=0,1"]):
                assert launch.main([*runs.tiny(source, folder), *more]) == 2
                assert capfd.readouterr().err == f"error: --workdir: {folder} {why}\n"


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_of_runs_that_begin_at_once_in_one_folder_one_is_trained(tmp_path):
    source, folder = runs.write_corpus(tmp_path / "corpus"), tmp_path / "run"
    command = runs.tiny(source, folder, "--config.train.steps=60", "--config.train.log_every=1")
    started = [runs.start(command) for _ in range(3)]
    ended = [process.communicate(timeout=300) for process in started]
    codes = [process.returncode for process in started]
    assert sorted(codes) == [0, 2, 2] or sorted(codes) == [0, 0, 2], ended
    for code, (_, error) in zip(codes, ended, strict=True):
        if code:
            (line,) = error.splitlines()
            assert line.startswith(f"error: --workdir: {folder} ") and "Traceback" not in line
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
        *range(1, 61)
    ]
