"""A command that writes its answers to a full disk ends with a line, and continues when there is room."""

import pytest

import launch
from tests import runs
from tests.faults import disks

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]


def test_answers_on_a_full_disk(tmp_path, capfd):
    run, lines = tmp_path / "run", [f"--workdir={tmp_path}/run", "--mode=predict", "--max_new_tokens=2"]
    source = runs.write_corpus(tmp_path / "corpus")
    assert launch.main(runs.tiny(source, run, "--config.train.steps=2")) == 0
    (tmp_path / "in.txt").write_text("alpha\n" * 20)
    asked = [*lines, f"--input={tmp_path}/in.txt"]
    assert launch.main([*asked, f"--output={tmp_path}/whole.txt"]) == 0
    with disks.small(tmp_path / "disk", "16k") as disk:
        ballast, target = disks.fill(disk), disk / "out.txt"
        for given in ([*asked, f"--output={target}"], [*lines, "--prompt=alpha", f"--output={target}"]):
            capfd.readouterr()
            assert launch.main(given) == 1
            said = capfd.readouterr().err.splitlines()
            assert "No space left on device" in said[-1] and said[-1].startswith("error: "), said
            assert len(said) <= 2 and not target.exists()
        ballast.unlink()
        assert launch.main([*asked, f"--output={target}"]) == 0
        assert target.read_text() == (tmp_path / "whole.txt").read_text()
        assert [path.name for path in disk.iterdir()] == ["out.txt"]
