"""Compositions of settings; `python -m tests.faults.compositions` draws more of them."""

import random
import re

import pytest

from tests.faults import compositions
from tests.faults.compositions import SETTINGS, command, composed, flags, has, measured, trial
from workdir.opening import read_config

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]


@pytest.mark.parametrize("config", ["lm", "vision"])
def test_what_is_composed_works_or_is_refused(tmp_path, rng, config):
    drawn, config = random.Random(int(rng.integers(1 << 30))), f"configs/{config}.py:tiny"
    keys, meshes = composed(read_config(config), drawn), drawn.sample(compositions.MESHES, 2)
    ended = trial(config, keys, meshes, tmp_path)
    assert ended == "ok" or re.match("refused: trained on [a-z ]*: error: ", ended), (
        f"{keys} {meshes}: {ended}"
    )


def test_a_difference_between_meshes_is_found(tmp_path, monkeypatch):
    """Of an optimizer whose updates depend on the number of devices."""

    def other(arguments):
        several = "--config.parallel.mesh.data=2" in arguments
        return command(*arguments, *["--config.optimizer.learning_rate=0.021"] * several)

    monkeypatch.setattr(compositions, "command", lambda *arguments: other(arguments))
    ended = trial("configs/vision.py:tiny", {}, [{"data": 2}, {"data": 2}], tmp_path)
    assert ended.startswith("differs: {(2, 'train/loss'): (")


def test_settings_are_those_of_a_config():
    """Each belongs to some config, a composition has some that fit, and each key has one value."""
    values = [read_config(f"configs/{name}.py:tiny") for name in compositions.CONFIGS]
    assert all(any(all(has(each, key) for key in setting) for each in values) for setting in SETTINGS)
    for each in values:
        keys = composed(each, random.Random(0))
        assert keys and all(has(each, key) for key in keys)


def test_flags_and_what_is_measured(tmp_path):
    assert "--config.parallel.mesh.data=2" in flags({}, {"data": 2})
    assert flags({"model.layers": [1]}, {})[0] == "--config.model.layers=[1]"
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.5}\n{"step": 1, "eval/loss": 1.0}\n')
    assert measured(tmp_path) == {(1, "train/loss"): 2.5}
