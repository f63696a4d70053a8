"""A warm start computes the function of the run that it starts from, or names the key that changes it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import launch
from tests import runs
from tests.test_configs import AT_HAND, CONFIGS
from workdir import opening
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root", "drawn")

STILL = ("--config.optimizer.learning_rate=0", "--config.train.steps=1")
ADAPTERS = (
    *("--config.model.lora_rank=4", "--config.model.lora_layers=attention/|feed_forward/"),
    *("--config.optimizer.train_only=lora", "--config.optimizer.name=adamw"),
)
YARN = (
    *("--config.model.position_scaling=yarn", "--config.model.position_factor=4"),
    *("--config.model.max_length=128", "--config.optimizer.learning_rate=0.02", "--config.train.steps=20"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


def began_with(folder: Path) -> str:
    return f"--config.initialize_from={folder}"


def last_loss(folder: Path) -> float:
    """The validation loss after the last step of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next(line["eval/loss"] for line in reversed(lines) if "eval/loss" in line)


def train(*arguments) -> float:
    assert launch.main([*arguments]) == 0
    (folder,) = (each.partition("=")[2] for each in arguments if each.startswith("--workdir="))
    return last_loss(Path(folder))


def refused(capfd, arguments: list[str]) -> str:
    capfd.readouterr()
    assert launch.main(arguments) == 2
    return capfd.readouterr().err


@pytest.mark.thorough
def test_adapters_keep_their_scale(corpus, tmp_path, capfd):
    def run(name, *keys):
        return runs.tiny(corpus, tmp_path / name, *keys)

    fast = ("--config.optimizer.learning_rate=0.02", "--config.train.steps=20")
    started = began_with(tmp_path / "base")
    train(*run("base"))
    first = train(*run("first", started, *ADAPTERS, *fast, "--config.model.lora_alpha=64"))
    again = began_with(tmp_path / "first")
    assert train(*run("second", again, *ADAPTERS, *STILL)) == pytest.approx(first, rel=1e-6)
    error = refused(capfd, run("third", again, *ADAPTERS, *STILL, "--config.model.lora_alpha=16"))
    assert "model.lora_alpha is 64.0 there and 16.0 here, with which the parameters" in error
    # Of a run without adapters no scale is taken, and without adapters here none is refused as idle.
    values = read_config("configs/lm.py:tiny", [("model.lora_rank", "4"), ("model.lora_alpha", "32")])
    values["initialize_from"] = str(tmp_path / "base")
    assert opening.inherit(values, None)["model"]["lora_alpha"] == 32
    error = refused(capfd, run("third", again, *STILL))
    assert "has learned" in error and "model.lora_rank=4 takes them" in error


@pytest.mark.thorough
def test_a_longer_context_alone_leaves_scaled_positions_as_they_were(corpus, tmp_path, capfd):
    first = train(*runs.tiny(corpus, tmp_path / "first", *YARN))
    longer = "--config.model.max_length=512"
    second = runs.tiny(corpus, tmp_path / "second", began_with(tmp_path / "first"), longer, *STILL)
    assert train(*second) == pytest.approx(first, rel=1e-6)
    assert train(*second, "--config.train.steps=2") == pytest.approx(first, rel=1e-6)  # resumed
    found = []
    for keys in ([], [longer]):
        capfd.readouterr()
        assert launch.main([f"--workdir={tmp_path}/first", "--mode=evaluate", *keys]) == 0
        found.append(runs.measured(capfd.readouterr().out)["eval/loss"])
    assert found[0] == found[1]
    forked, steps = f"--to={tmp_path}/fork", "--config.train.steps=21"
    still = "--config.optimizer.learning_rate=0"
    assert launch.main([f"--workdir={tmp_path}/first", "--mode=fork", forked, longer, steps, still]) == 0
    assert last_loss(tmp_path / "fork") == pytest.approx(first, rel=1e-6)


@pytest.mark.thorough
def test_a_trained_length_that_is_no_whole_number_is_asked_for(corpus, tmp_path, capfd):
    odd = [key.replace("factor=4", "factor=3") for key in YARN]
    train(*runs.tiny(corpus, tmp_path / "first", *odd, "--config.train.steps=1"))
    longer, said = "--config.model.max_length=384", "position_original_length is 42.66.* there and 128 here"
    assert re.search(said, refused(capfd, [f"--workdir={tmp_path}/first", "--mode=evaluate", longer]))
    start = began_with(tmp_path / "first")
    capfd.readouterr()
    assert launch.main(runs.tiny(corpus, tmp_path / "second", start, longer, *STILL)) == 0
    assert re.search(f"{said}, with which", capfd.readouterr().out)


@pytest.mark.thorough
def test_a_key_that_changes_the_function_is_named(corpus, tmp_path, capfd):
    train(*runs.tiny(corpus, tmp_path / "first"))

    def second(*keys):
        return runs.tiny(corpus, tmp_path / "second", began_with(tmp_path / "first"), *STILL, *keys)

    said = "model.norm_epsilon is 1e-06 there and 0.1 here"
    epsilon = "--config.model.norm_epsilon=0.1"
    assert said in refused(capfd, second(epsilon))
    assert "model.d_ff is 64 there and 32 here" in refused(capfd, second("--config.model.d_ff=32"))
    error = refused(capfd, second("--config.model.qk_norm=true"))
    assert "lacks" in error and "model.qk_norm is False there and True here" in error
    error = refused(capfd, second("--config.data.tokenizer=words"))
    assert "config.data.tokenizer: 'words', but the tokenizer of" in error
    assert not (tmp_path / "second").exists()
    asked = ("--config.model.pattern=window", "--config.model.pattern_size=4", epsilon)
    capfd.readouterr()
    assert launch.main(second(*asked, "--config.initialize_strict=false")) == 0
    out = capfd.readouterr().out
    assert f"  {said}, with which the parameters compute another function\n" in out
    assert "  model.pattern is 'full' there and 'window' here, with which" in out


@pytest.mark.thorough
def test_the_mean_of_checkpoints_is_what_a_run_with_their_mean_is_taken_for(corpus, tmp_path, capfd):
    keys = ("average_last=3", "keep_last=3", "checkpoint_every=1", "steps=4")
    train(*runs.tiny(corpus, tmp_path / "first", *(f"--config.train.{key}" for key in keys)))
    start = began_with(tmp_path / "first")
    capfd.readouterr()
    train(*runs.tiny(corpus, tmp_path / "second", start, *STILL))
    assert "first, the mean of 3 checkpoints to step 4:" in capfd.readouterr().out
    (_, before), (_, after) = (opening.load(tmp_path / name) for name in ("first", "second"))
    np.testing.assert_array_equal(before["embedding"]["table"], after["embedding"]["table"])


def images(folder: Path, *keys) -> list[str]:
    config = ["--config=configs/vision.py:tiny", "--config.model.position=learned", f"--workdir={folder}"]
    return [*config, "--config.model.max_length=64", *keys]


@pytest.mark.thorough
def test_positions_of_images_are_interpolated_or_refused(tmp_path, capfd):
    first = train(*images(tmp_path / "first"))
    start, larger = began_with(tmp_path / "first"), "--config.data.image_size=16"
    assert train(*images(tmp_path / "same", start, *STILL)) == pytest.approx(first, rel=1e-6)
    room = "--config.model.max_length=80"
    assert train(*images(tmp_path / "room", start, *STILL, room)) == pytest.approx(first, rel=1e-6)
    capfd.readouterr()
    train(*images(tmp_path / "larger", start, *STILL, larger))
    said = "data.image_size is 8 there and 16 here, for which learned positions are interpolated"
    assert said in capfd.readouterr().out
    tables = [
        np.asarray(opening.load(tmp_path / name)[1]["trunk"]["position"]["table"])
        for name in ("first", "larger")
    ]
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):  # the corners of 4 x 4 and of 8 x 8 patches
        before, after = tables[0][12 * row + 3 * column], tables[1][56 * row + 7 * column]
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    for mode in (["--mode=evaluate"], ["--mode=fork", f"--to={tmp_path}/fork", "--config.train.steps=3"]):
        error = refused(capfd, [f"--workdir={tmp_path}/first", *mode, larger])
        assert "data.image_size is 8 there and 16 here, with which the parameters" in error
    sinusoidal = "--config.model.position=sinusoidal"
    train(*images(tmp_path / "sine", sinusoidal))
    start = began_with(tmp_path / "sine")
    error = refused(capfd, images(tmp_path / "none", sinusoidal, start, *STILL, larger))
    assert "data.image_size is 8 there and 16 here" in error


@pytest.mark.thorough
@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_begins_with_the_loss_of_the_run_that_it_starts_from(tmp_path, config):
    """Where a run's reference is the model as training begins, with that of a margin of 0."""
    values = read_config(f"configs/{config}:tiny")
    keys = [f"--config=configs/{config}:tiny"]
    if values["data"].get("source") in AT_HAND:
        keys.append(f"--config.data.source={AT_HAND[values['data']['source']](tmp_path / 'corpus')}")
    if "subsample" in values["data"]:
        keys.append("--config.data.subsample=0.1")  # a corpus of ten words has no rare one
    first = train(*keys, f"--workdir={tmp_path}/first")
    second = train(*keys, f"--workdir={tmp_path}/second", began_with(tmp_path / "first"), STILL[0])
    assert second == pytest.approx(np.log(2) if config == "dpo.py" else first, rel=1e-6)
