"""Each writer can be left out, and nothing else goes with it."""

import contextlib
import json
import sys
import time

import pytest

import launch
from tests import runs
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.logging.events import event_files
from transformer.training.logging.retrying_writer import RetryingWriter
from transformer.training.logging.writers import EXTRAS, Progress, make_writers, names_of, whole_lines

FILES = {"jsonl": "metrics.jsonl", "tensorboard": "events.out.tfevents.*"}


@pytest.mark.parametrize("name", FILES)
def test_each_writes_its_own_and_nothing_else(tmp_path, name):
    for writer in make_writers(RunFolder(tmp_path), 0, names_of(f" {name},")):
        writer.write(1, {"train/loss": 1.0})
        writer.close()
    (path,) = tmp_path.iterdir()
    assert path.match(FILES[name])


def test_an_unknown_one_is_refused():
    with pytest.raises(UserError, match=r"^writers: 'csv' is none of jsonl, tensorboard, wandb, mlflow$"):
        names_of("jsonl,csv")
    assert names_of("") == [] and names_of("tensorboard, jsonl") == ["tensorboard", "jsonl"]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_without_any_still_says_what_it_measured_and_may_take_one_up_later(capfd, tmp_path):
    folder, source = tmp_path / "run", runs.write_corpus(tmp_path / "corpus")
    schedule = ["--config.optimizer.schedule=constant"]
    assert launch.main(runs.tiny(source, folder, *schedule, "--config.train.writers=")) == 0
    assert not {"metrics.jsonl", "report.md"} & {path.name for path in folder.iterdir()}
    assert not event_files(folder)
    said = capfd.readouterr().out
    assert "this model" in said and "Next, for example:" in said
    more = [f"--workdir={folder}", "--config.train.steps=4", "--config.train.log_every=1"]
    assert launch.main([*more, "--config.train.writers=jsonl"]) == 0
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 4]
    assert not event_files(folder) and (folder / "report.md").exists()
    # A killed run had logged later steps: they go with the writer that has them.
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "train/loss": 0.0}\n{"st')
    assert launch.main([*more[:1], "--config.train.steps=5"]) == 0
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 4, 5]
    assert json.loads(lines[-1])["train/loss"] > 0


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_resumed_run_leaves_out_lines_that_are_damaged(tmp_path):
    path = tmp_path / "metrics.jsonl"
    kept = [b'{"step": 1, "a": "\xc3\xa4"}', b'{"step": 3}']
    path.write_bytes(
        b"\n".join([kept[0], b'{"step": 2, "a\xff": 1}', b"[" * 100_000, kept[1], b'{"step": 4'])
    )
    assert whole_lines(path, 9) == [line.decode() for line in kept]
    assert whole_lines(path, 2) == [kept[0].decode()]


def write_some(name, folder, steps, until):
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.config.write_text(json.dumps({"seed": 3, "model": {"d_model": 16}}))
    for writer in make_writers(folder, steps[0] - 1, names_of(name)):
        for step in steps:
            writer.write(step, {"train/loss": 1.0 / step, "train/norms/gradient/blocks/0": float(step)})
        writer.write(until, {"eval/loss": float("nan")})
        writer.close()


@pytest.mark.thorough
def test_wandb_writes_offline_and_goes_on_under_the_same_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "PROJECT": "letters"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    folder = RunFolder(tmp_path / "run")
    write_some("wandb", folder, [10, 20], 20)
    write_some("wandb", folder, [30], 30)
    ids = json.loads((tmp_path / "run/trackers.json").read_text())
    first, second = sorted((tmp_path / "run/wandb").glob("offline-run-*"))
    # Two starts in one second get the same name but for a number at its end.
    assert all(ids["wandb"] in each.name.split("-") for each in (first, second))
    # In a log of protocol buffers names and values are readable as they are. Another process writes it.
    expected = [b"train/loss", b"train/norms/gradient/blocks/0", b"eval/loss", b"letters", b"model.d_model"]
    expected += [b"0.1", b"0.05", b"0.0333", b"NaN"]
    missing, end = expected, time.monotonic() + 60
    while missing and time.monotonic() < end:
        written = b"".join(next(each.glob("*.wandb")).read_bytes() for each in (first, second))
        missing = [text for text in expected if text not in written]
        time.sleep(0.1)
    assert missing == []


@pytest.mark.thorough
def test_mlflow_writes_offline_and_goes_on_in_the_same_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "letters")
    folder = RunFolder(tmp_path / "run")
    write_some("mlflow", folder, [10, 20], 20)
    write_some("mlflow", folder, [30], 30)
    (run,) = mlflow.search_runs(experiment_names=["letters"], output_format="list")
    assert run.info.run_id == json.loads((tmp_path / "run/trackers.json").read_text())["mlflow"]
    assert run.data.params == {"seed": "3", "model.d_model": "16"} and run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [(step, 1.0 / step) for step in (10, 20, 30)]


class Unreachable(Exception):
    """What the library of a tracker raises, which is no `OSError`."""


class Tracker:
    """The libraries of both trackers at once: `ended` is how runs ended there, `params` what they were told;
    the calls in `failing` raise."""

    def __init__(self, failing=()):
        self.failing, self.logged, self.ended, self.params = failing, [], [], {}
        self.entities, self.info, self.run_id = self, self, "5e"
        self.Param = self.Metric = lambda *values: values
        self.Settings = dict

    def __call__(self, call):
        if call in self.failing:
            raise Unreachable("no answer\nand more")

    def start_run(self, run_id, run_name):
        self("start")
        return self

    def init(self, **options):
        self("start")
        return self

    def MlflowClient(self):
        return self

    def log_batch(self, _, params=(), metrics=()):
        self("log")
        self.params |= dict(params)
        self.logged += [step for _, _, _, step in metrics]

    def log(self, values, step):
        self("log")
        self.logged.append(step)

    def end_run(self, status):
        self("end")
        self.ended.append(status)

    def finish(self, exit_code):
        self("end")
        self.ended.append(exit_code)


def tracked(name, folder, monkeypatch, failing=()):
    folder.path.mkdir(parents=True, exist_ok=True)
    tracker = Tracker(failing)
    monkeypatch.setitem(sys.modules, name, tracker)
    (writer,) = make_writers(folder, 0, [name])
    return writer, tracker


@pytest.mark.parametrize("name", EXTRAS)
def test_a_tracker_that_does_not_answer_is_no_reason_to_stop(tmp_path, monkeypatch, capsys, name):
    writer, tracker = tracked(name, RunFolder(tmp_path), monkeypatch)
    said = []
    lasting = RetryingWriter(writer, said.append)
    tracker.failing = ("log",)
    lasting.write(1, {"train/loss": 1.0})
    assert [line.rpartition(": ")[2] for line in said] == [
        "values since step 1 cannot be written (no answer) and are kept"
    ]
    tracker.failing = ("end",)
    lasting.write(2, {"train/loss": 1.0})
    lasting.close()
    assert tracker.logged == [1, 2]
    assert capsys.readouterr().err == f"warning: {name}: the run could not be ended there (no answer)\n"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_tracker_that_does_not_start_is_named(tmp_path, monkeypatch, name):
    expected = rf"^config.train.writers: '{name}' does not start: no answer$"
    with pytest.raises(UserError, match=expected):
        tracked(name, RunFolder(tmp_path), monkeypatch, ("start",))
    (tmp_path / "trackers.json").write_text(json.dumps({name: "5e"}))
    with pytest.raises(UserError, match=r"no answer; .*trackers.json names the run 5e, without it a new one"):
        tracked(name, RunFolder(tmp_path), monkeypatch, ("start",))


@pytest.mark.parametrize("text", ["", "[]", '{"wandb": 3}', '{"wandb": "5'])
def test_a_damaged_list_of_ids_is_named(tmp_path, monkeypatch, text):
    (tmp_path / "trackers.json").write_text(text)
    with pytest.raises(UserError, match=r"trackers.json: expected the ids of trackers; without it new runs"):
        tracked("wandb", RunFolder(tmp_path), monkeypatch)


@pytest.mark.parametrize(("name", "good", "failed"), [("wandb", 0, 1), ("mlflow", "FINISHED", "FAILED")])
def test_a_run_that_ends_with_an_error_has_failed_there(tmp_path, monkeypatch, name, good, failed):
    writer, tracker = tracked(name, RunFolder(tmp_path), monkeypatch)
    with contextlib.ExitStack() as stack:
        stack.callback(writer.close)
    with pytest.raises(ValueError, match="diverged"), contextlib.ExitStack() as stack:
        stack.callback(writer.close)
        raise ValueError("diverged")
    assert tracker.ended == [good, failed]


def test_a_place_is_no_key_of_a_tracker(tmp_path, monkeypatch):
    sources, until = {"stdlib": 0.5, "text:/my (1)/*.txt": 0.5}, {"batch_size": {"200": 8}}
    (tmp_path / "config.json").write_text(json.dumps({"data": {"sources": sources}, "until": until}))
    _, tracker = tracked("mlflow", RunFolder(tmp_path), monkeypatch)
    assert tracker.params == {"data.sources": str(sources), "until.batch_size": "{'200': 8}"}


def test_a_run_whose_keys_were_not_taken_begins_anew(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"seed": 3}')
    with pytest.raises(UserError, match="no answer"):
        tracked("mlflow", RunFolder(tmp_path), monkeypatch, ("log",))
    assert not (tmp_path / "trackers.json").exists()


@pytest.mark.parametrize("name", EXTRAS)
def test_a_package_that_is_not_installed_is_named_before_anything_is_written(
    tmp_path, monkeypatch, capsys, name
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(runs.ROOT)
    source = runs.write_corpus(tmp_path / "corpus")
    flags = runs.tiny(source, tmp_path / "run", f"--config.train.writers=jsonl,{name}")
    assert launch.main(flags) == 2
    said = capsys.readouterr().err
    assert f"config.train.writers: '{name}' needs" in said and f"pip install {name}" in said
    assert not (tmp_path / "run").exists()


def test_the_bar_fits_its_terminal_and_says_that_the_first_step_compiles():
    progress = Progress(0, 10)
    bar = progress._bar
    bar.dynamic_ncols, bar.ncols = None, 48
    assert len(str(bar)) <= 48 and str(bar).endswith("left · compiling")
    progress.update(5, {"train/loss": 5.5, "train/tokens_per_second": 2984.0, "train/mfu": 0.31})
    assert len(str(bar)) <= 48 and "5/10 steps" in str(bar) and "left" in str(bar)
    bar.ncols = 100
    assert str(bar).endswith("left · loss 5.5000 · 2,984 tokens/s · MFU 31.0%") and len(str(bar)) == 100
    progress.close()
