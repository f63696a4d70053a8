"""A run on a mixture of sources: trained, stopped, resumed on other devices, evaluated, planned."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import launch
from experiments import find_experiment
from tests import runs
from tests.test_resume import Send, last_state, measurements
from workdir import opening
from workdir import session as command
from workdir.compatibility.differences import differences

OPTIONS = [
    "--config.train.steps=10",
    "--config.train.checkpoint_every=5",
    "--config.train.log_every=1",
    "--config.train.evaluate_every=4",
    "--config.train.evaluate_batches=3",
    "--config.optimizer.name=sgd",
    "--config.model.dropout=0.2",
]

KILLED = """
import sys
import launch
from workdir import session
from tests.test_resume import Kill

_, overrides = launch.split_overrides(sys.argv[2:])
session.train(sys.argv[1], overrides, "configs/lm.py:tiny", hooks=[Kill(7, sys.argv[1])])
"""

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """The value of `data.sources`."""
    folder = tmp_path_factory.mktemp("mixture")
    sources = [runs.write_corpus(folder / name, documents) for name, documents in (("one", 60), ("two", 30))]
    return f"--config.data.sources={json.dumps(dict(zip(sources, (0.7, 0.3), strict=True)))}"


@pytest.fixture(scope="module")
def straight(tmp_path_factory, mixture):
    """The run that nothing stops."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert launch.main(["--config=configs/lm.py:tiny", f"--workdir={folder}", mixture, *OPTIONS]) == 0
    return folder


def test_every_source_and_the_whole_are_measured(straight):
    (*_, last) = measurements(straight)
    for name in ("loss", "bits_per_byte", "perplexity"):
        assert last.keys() >= {f"eval/{name}", f"eval/one/{name}", f"eval/two/{name}"}
    assert last["eval/loss"] == pytest.approx(0.7 * last["eval/one/loss"] + 0.3 * last["eval/two/loss"])
    assert last["eval/perplexity"] == pytest.approx(np.exp(last["eval/loss"]))
    assert (straight / "report.md").is_file()


def test_bits_per_byte_are_those_of_text_in_the_proportions(capfd, straight):
    """By an independent count of the targets and bytes of each source."""
    assert launch.main([f"--workdir={straight}", "--mode=evaluate"]) == 0
    found = runs.measured(capfd.readouterr().out)
    data = opening.reopen_run(straight).experiment.data
    nats = size = 0.0
    for (name, part), weight in zip(data.parts("validation").items(), (0.7, 0.3), strict=True):
        rows = part.rows("validation").batch(np.arange(len(part.rows("validation"))))
        targets = rows["weights"].sum()
        nats += weight * found[f"eval/{name}/loss"]
        size += weight * rows["bytes"].sum() / targets
    assert found["eval/loss"] == pytest.approx(nats, rel=1e-4)
    assert found["eval/bits_per_byte"] == pytest.approx(nats / np.log(2) / size, rel=1e-4)


def test_other_evaluators_tell_the_sources_apart(capfd, straight):
    assert (
        launch.main(
            [f"--workdir={straight}", "--mode=evaluate", "--config.evaluate.also=compressors,positions"]
        )
        == 0
    )
    found = runs.measured(capfd.readouterr().out)
    assert {"compressors/one/gzip", "compressors/two/xz", "positions/one/from_3", "positions/from_3"} <= {
        *found
    }
    low, high = sorted([found["positions/one/from_3"], found["positions/two/from_3"]])
    assert low <= found["positions/from_3"] <= high


@pytest.mark.thorough
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, mixture, straight):
    folder = tmp_path / "run"
    _, overrides = launch.split_overrides([mixture, *OPTIONS])
    stop = Send(3, signal.SIGTERM)
    assert command.train(str(folder), overrides, "configs/lm.py:tiny", hooks=[stop]) == "SIGTERM"
    assert launch.main([f"--workdir={folder}"]) == 0
    for x, y in zip(jax.tree.leaves(last_state(folder)), jax.tree.leaves(last_state(straight)), strict=True):
        np.testing.assert_array_equal(x, y)
    assert measurements(folder) == measurements(straight)


@pytest.mark.thorough
def test_a_killed_run_goes_on_with_two_devices_instead_of_one(tmp_path, mixture):
    """As a run that one device trained to the end, but for rounding."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    flags = ["--config=configs/lm.py:tiny", mixture, *OPTIONS]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
    found = subprocess.run(
        [sys.executable, "-c", KILLED, str(killed), mixture, *OPTIONS],
        cwd=runs.ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == -9, found.stderr
    for folder, devices in ((whole, "1"), (killed, "2")):
        made = runs.start([*flags, f"--workdir={folder}"], env=environment | {"JAX_NUM_CPU_DEVICES": devices})
        out, err = made.communicate(timeout=300)
        assert made.returncode == 0, err
        assert f"parameters on {devices} x cpu, from step {0 if folder is whole else 5} to 10" in out
    for x, y in zip(jax.tree.leaves(last_state(killed)), jax.tree.leaves(last_state(whole)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_the_place_of_the_sources_may_change_but_not_their_content(capfd, tmp_path, mixture, straight):
    run, there = tmp_path / "run", tmp_path / "there"
    shutil.copytree(straight, run)
    (one, two) = json.loads(mixture.partition("=")[2])
    shutil.copytree(os.path.dirname(os.path.dirname(one.partition(":")[2])), there)

    def resume(*flags, weights=(0.7, 0.3)):
        sources = {
            f"text:{there}/{name}/*.txt": weight for name, weight in zip(("one", "two"), weights, strict=True)
        }
        flags = [f"--config.data.sources={json.dumps(sources)}", *OPTIONS, "--config.train.steps=11", *flags]
        code = launch.main(["--config=configs/lm.py:tiny", f"--workdir={run}", *flags])
        return code, capfd.readouterr().err

    assert two != one
    code, err = resume(weights=(0.6, 0.4))
    assert code == 2 and "data.sources[0] {'text': 0.7} (here {'text': 0.6})" in err
    (there / "two" / "0.txt").write_text("other")
    code, err = resume()
    assert code == 2 and "started with other data: data.sources[1]: 0.txt had " in err
    shutil.copy(os.path.dirname(two.partition(":")[2]) + "/0.txt", there / "two")
    assert resume()[0] == 0


def test_a_weight_may_be_written_with_a_point_or_without():
    config = opening.check_config(opening.read_config("configs/lm.py:tiny", []))
    there = {"data.sources.text:/a": 2, "data.sources.stdlib": 1}
    assert differences(config, {"data.sources.text:/b": 2.0, "data.sources.stdlib": 1.0}, there, True) == ""
    found = differences(config, {"data.sources.text:/a": 3, "data.sources.stdlib": 1}, there, True)
    assert found == "data.sources[1] {'text': 2} (here {'text': 3})"


def test_the_shapes_of_batches_are_known_without_data(tmp_path, mixture):
    _, overrides = launch.split_overrides([mixture, f"--config.data.cache_dir={tmp_path}/cache"])
    config = opening.check_config(opening.read_config("configs/lm.py:tiny", overrides))
    experiment = find_experiment(config.experiment)(config)
    shapes = experiment.batch_shapes()
    assert not (tmp_path / "cache").exists()
    batch = experiment.train_data().batch_at(0)
    assert {name: (each.shape, each.dtype) for name, each in shapes.items()} == {
        name: (each.shape, each.dtype) for name, each in batch.items()
    }


@pytest.mark.thorough
def test_masked_language_models_train_on_mixtures(capfd, tmp_path, mixture):
    options = ["--config.data.next_sentence=false", f"--workdir={tmp_path}/bert"]
    assert launch.main(["--config=configs/bert.py:tiny", mixture, *options]) == 0
    lines = re.findall(r"^(\w+): [\d,]+ texts in [\d,]+ rows", capfd.readouterr().out, re.M)
    assert lines == ["one", "two"]
    (*_, last) = measurements(tmp_path / "bert")
    assert last["eval/loss"] == pytest.approx(0.7 * last["eval/one/loss"] + 0.3 * last["eval/two/loss"])


@pytest.mark.parametrize("mode", [["config"], ["sweep", "--sweep=seed=0,1", "--dry_run"]])
@pytest.mark.parametrize(
    "sources,said",
    [
        ({"stdlib": 1}, "config.data.sources: only 'stdlib'; give several, or one as source"),
        ({"stdlib": 1, "snippets": -1}, "config.data.sources: 'snippets' has the weight -1; expected a posi"),
        ({"stdlib": 1, "nonsense": 1}, "config.data.sources: 'nonsense'; expected one of stdlib, text"),
    ],
)
def test_impossible_sources_are_refused_with_the_config(capfd, mode, sources, said):
    """Before a run is started: a sweep would start all of them."""
    flags = [f"--mode={mode[0]}", "--config=configs/lm.py:tiny", *mode[1:]]
    assert launch.main([*flags, f"--config.data.sources={json.dumps(sources)}"]) == 2
    assert said in capfd.readouterr().err


def test_a_model_with_memory_refuses_a_mixture(capfd, tmp_path, mixture):
    flags = ["--config=configs/transformer_xl.py:tiny", mixture, f"--workdir={tmp_path}/xl"]
    assert launch.main(flags) == 2
    assert "data.sources: transformer_xl reads one text in its order" in capfd.readouterr().err


@pytest.mark.thorough
def test_the_loss_of_each_document_names_its_source(mixture, tmp_path, capsys):
    run, out = f"--workdir={tmp_path}/run", tmp_path / "documents.jsonl"
    assert launch.main(["--config=configs/lm.py:tiny", run, mixture]) == 0
    assert launch.main([run, "--mode=evaluate", "--split=train", f"--per_document={out}"]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["source"] for line in lines} == {"one", "two"}
    assert all(f"/{line['source']}/" in line["place"] for line in lines)
    losses = [line["loss"] for line in lines]
    assert losses == sorted(losses, reverse=True)
    capsys.readouterr()
    assert launch.main([run, "--mode=batch", "--step=1"]) == 0
    assert all(json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines())
