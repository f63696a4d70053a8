"""TensorBoard shows each value, picture and text of a run once, also while it trains, by the run's name."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import launch
from tests import runs
from tests.faults.test_full_disks import events, shown
from transformer.run_folder import RunFolder
from transformer.training.logging.events import Events, config_keys, event_files
from transformer.training.logging.writers import make_writers

PIXELS = np.zeros((2, 2, 3), np.uint8)


@pytest.mark.thorough
def test_pictures_are_no_events_where_those_are_left_out(tmp_path):
    arguments = ["--config=configs/translation.py:tiny", f"--workdir={tmp_path}/run"]
    assert launch.main([*arguments, "--config.train.writers=jsonl"]) == 0
    assert list((tmp_path / "run" / "attention").glob("*.png"))
    assert list((tmp_path / "run" / "samples").glob("*.txt"))
    assert not event_files(tmp_path / "run")


def test_no_step_is_shown_twice_after_a_restart_and_none_is_hidden(tmp_path):
    """Of a run that was killed after step 7, whose last checkpoint is of step 4; it draws before it logs."""
    folder = RunFolder(tmp_path)
    pixels = np.zeros((2, 2, 3), np.uint8)
    for last, steps in ((0, range(1, 8)), (4, range(5, 10)), (9, range(10, 12))):
        (writer,) = make_writers(folder, last, ["tensorboard"])
        for step in steps:
            if step % 3 == 0:
                with Events(folder.events, suffix=".pictures") as pictures:
                    pictures.add_picture("b", pixels, step)
            if step != 5:
                writer.write(step, {"a": step})
        if last:  # else it is killed
            writer.close()
    found = shown(folder.events)
    assert [step for step, name in found if name == "a"] == [1, 2, 3, 4, *range(6, 12)]
    assert sorted(step for step, name in found if name == "b") == [3, 6, 9]


class Watcher:
    """TensorBoard while a run trains: it reads a file to its end, then the next, and does not come back."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.place, self.read = directory, "", {}

    def look(self) -> None:
        """Reads what has come since."""
        for path in event_files(self.directory):
            if path.name >= self.place:
                self.place, self.read[path.name] = path.name, path.read_bytes()

    def found(self, tmp_path: Path) -> list[tuple[int, str]]:
        """(step, name) of what is shown."""
        for name, content in self.read.items():
            (tmp_path / name).write_bytes(content)
        return shown(tmp_path)


def test_curves_do_not_end_with_the_first_picture(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (writer,) = make_writers(folder, 0, ["tensorboard"])
    watcher = Watcher(folder.path)
    for step in range(1, 7):
        if step in (2, 4, 5):
            with Events(folder.events, suffix=".pictures") as pictures:
                pictures.add_picture("b", PIXELS, step)
        watcher.look()
        writer.write(step, {"a": step})
        watcher.look()
    writer.close()
    expected = [*((step, "a") for step in range(1, 7)), *((step, "b") for step in (2, 4, 5))]
    assert sorted(watcher.found(tmp_path)) == sorted(expected)
    # A file of values is closed where pictures have come between, and at no other time.
    assert len(event_files(folder.path)) == 3 + 4


def test_a_run_has_its_own_name_and_its_config(tmp_path):
    """Which is a text, and the hyperparameters, in the file of the first values."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    folder = RunFolder(tmp_path / "letters")
    folder.path.mkdir()
    values = {
        "seed": 3,
        "model": {"tied": True, "kernel": "auto", "kinds": {"0": 1}},
        "rate": 0.25,
        "no": None,
    }
    folder.config.write_text(json.dumps(values))
    (writer,) = make_writers(folder, 5, ["tensorboard"])
    assert not event_files(folder.path)  # until there is something to show
    writer.write(10, {"a": 1.0})
    writer.close()
    assert [path.parent for path in event_files(folder.path)] == [folder.path]
    by_tag = {value.tag: value for event in events(folder.path) for value in event.summary.value}
    (text,) = by_tag["config/text_summary"].tensor.string_val
    assert by_tag["config/text_summary"].metadata.plugin_data.plugin_name == "text"
    lines = text.decode().splitlines()
    assert all(line.startswith("    ") for line in lines)
    assert json.loads("\n".join(lines)) == config_keys(folder) and '"model.kinds"' in text.decode()
    plugin = by_tag["_hparams_/session_start_info"].metadata.plugin_data
    start = HParamsPluginData.FromString(plugin.content).session_start_info
    assert plugin.plugin_name == "hparams" and start.group_name == "letters"
    known = {key: getattr(value, value.WhichOneof("kind")) for key, value in start.hparams.items()}
    assert known == {
        **{"seed": 3.0, "model.tied": True, "model.kernel": "auto", "model.kinds": '{"0": 1}', "rate": 0.25},
        "no": "null",
    }
    assert start.hparams["model.tied"].WhichOneof("kind") == "bool_value"


def test_an_empty_line_is_part_of_a_text(tmp_path):
    with Events(tmp_path) as file:
        file.add_text("sample", "a\n\n# b\n", 1)
    (text,) = [value.tensor.string_val[0] for event in events(tmp_path) for value in event.summary.value]
    assert text.decode() == "    a\n    \n    # b\n"


def test_a_run_that_an_earlier_version_has_started_continues_in_its_folder(tmp_path):
    folder = RunFolder(tmp_path)
    with Events(tmp_path / "events", purge_step=1) as earlier:
        earlier.add_scalars(1, {"a": 1.0})
        earlier.add_scalars(2, {"a": 1.0})
    (writer,) = make_writers(folder, 1, ["tensorboard"])
    assert len(event_files(tmp_path / "events")) == 2 and not event_files(tmp_path)
    writer.write(2, {"a": 2.0})
    writer.close()
    assert shown(folder.events) == [(1, "a"), (2, "a")]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_samples_are_shown_as_they_are_written(tmp_path):
    folder, source = RunFolder(tmp_path / "run"), runs.write_corpus(tmp_path / "corpus")
    assert launch.main(runs.tiny(source, folder.path, "--config.train.sample_every=1")) == 0
    texts = {
        event.step: value.tensor.string_val[0].decode()
        for event in events(folder.path)
        for value in event.summary.value
        if value.tag == "sample/text_summary"
    }
    files = {int(path.stem): path.read_text() for path in folder.samples.iterdir()}
    assert len(files) >= 2
    for step, text in texts.items():
        lines = text.split("\n")
        assert all(line.startswith("    ") for line in lines)
        assert "\n".join(line[4:] for line in lines) + "\n" == files[step]
    assert texts.keys() == files.keys()
    # Resumed, and copied: events of both starts are of one run.
    more = [f"--workdir={shutil.copytree(folder.path, tmp_path / 'copy')}", "--config.train.steps=4"]
    assert launch.main(more) == 0
    there = shown(tmp_path / "copy")
    assert [step for step, name in there if name == "sample/text_summary"] == [1, 2, 3, 4]
    assert len({name for _, name in there if "hparams" in name}) == 1


def test_events_are_written_without_pytorch_and_leave_it_to_others(tmp_path):
    (tmp_path / "torch.py").write_text("print('loaded')")
    code = """
        import sys
        import numpy as np
        from pathlib import Path
        from transformer.training.logging.events import Events
        with Events(Path(sys.argv[1])) as events:
            events.add_scalars(1, {"a": 1.0, "c": float("nan")})
            events.add_picture("b", np.zeros((2, 2, 3), np.uint8), 1)
        print("written")
        import torch
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "events")],
        cwd=runs.ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["written", "loaded"] and done.stderr == "", done.stderr
    assert list((tmp_path / "events").iterdir())
