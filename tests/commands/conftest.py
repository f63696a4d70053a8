"""A trainer that takes no time, for the tests of commands that train many runs."""

import textwrap

import pytest

from commands.sweeps import jobs as running
from commands.sweeps.jobs import Job

TRAINER = """
    import json, os, pathlib, signal, sys, time
    flags = dict(each.removeprefix("--").partition("=")[::2] for each in sys.argv[1:])
    folder, rate = pathlib.Path(flags["workdir"]), float(flags.get("config.rate", "1"))
    steps, wait = int(flags["config.steps"]), float(flags.get("config.wait", "0"))
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    metrics = folder / "metrics.jsonl"
    begin = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    with (folder / "starts").open("a") as file:
        file.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {begin}\\n")
    for step in range(begin + 1, steps + 1):
        if rate == 13 and step == 3:
            sys.exit("error: config.rate: 13 is unlucky")
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "eval/loss": rate / step}) + "\\n")
        time.sleep(wait)
        if stop:
            sys.exit(143)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes a job of a trainer that takes no time."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "launch.py").write_text(textwrap.dedent(TRAINER))
    monkeypatch.setattr(running, "ROOT", tmp_path / "root")
    monkeypatch.setattr(running, "SECONDS", 0.02)

    def make(name, rate=1, steps=9, wait=0.0):
        folder = tmp_path / "runs" / name
        keys = [f"--config.rate={rate}", f"--config.steps={steps}", f"--config.wait={wait}"]
        values = {"rate": rate, "train": {"steps": steps, "evaluate_every": 1}}
        return Job(name, folder, [f"--workdir={folder}", *keys], values)

    return make
