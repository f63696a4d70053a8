"""What is measured of which data, in training and by --mode=evaluate."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import launch
from tests import runs
from transformer.errors import UserError
from transformer.training.checkpoints.initialize import Checkpoint
from workdir import opening
from workdir.folder import stored_config

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("other") / "other.txt"
    path.write_text("what is not like the rest\n" * 40)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, corpus, other) -> Path:
    """A language model with two checkpoints that measures a second set besides, and compressors on both."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    keys = [
        f"evaluate.sets.other=text:{other}",
        "evaluate.also=compressors,positions",
        "evaluate.batch_size=16",
    ]
    keys += [
        "train.checkpoint_every=1",
        "train.keep_last=2",
        "optimizer.schedule=constant",
    ]
    assert launch.main(runs.tiny(corpus, folder, *(f"--config.{key}" for key in keys))) == 0
    return folder


def evaluated(capfd, folder: Path | str, *arguments: str) -> str:
    """What --mode=evaluate prints."""
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=evaluate", *arguments]) == 0, capfd.readouterr().err
    return capfd.readouterr().out


def fails(capfd, arguments: list[str]) -> str:
    capfd.readouterr()
    assert launch.main(arguments) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1, error
    return error


@pytest.mark.thorough
def test_several_sets_are_measured_while_training(trained):
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"eval/loss", "other/loss", "compressors/gzip", "other/compressors/xz"} <= last.keys()
    assert last["other/compressors/gzip"] < 1 < last["compressors/gzip"]


@pytest.mark.thorough
def test_the_loss_by_position_is_the_loss_divided(trained):
    run, params = opening.load(trained, [("train.evaluate_batches", "0")])
    found = run.evaluate(params, "train")
    weights = {}
    for batch in run.experiment.loader("train").iterate(0):
        for i in range(9):
            here = (batch["positions"] >= 2**i - 1) & (batch["positions"] < 2 ** (i + 1) - 1)
            weights[f"positions/from_{2**i - 1}"] = (
                weights.get(f"positions/from_{2**i - 1}", 0) + (batch["weights"] * here).sum()
            )
    there = [name for name, weight in weights.items() if weight]
    assert {name for name in found if name.startswith("positions/")} == set(there) and len(there) > 4
    mean = np.average([found[name] for name in there], weights=[weights[name] for name in there])
    assert mean == pytest.approx(found["eval/loss"], rel=1e-5)


@pytest.mark.thorough
def test_each_split_is_measured_whole_and_kept(capfd, trained):
    """Training measured one batch only."""
    printed = [evaluated(capfd, trained, f"--split={split}") for split in ("train", "validation", "test")]
    found = [runs.measured(out) for out in printed]
    assert len({each["eval/loss"] for each in found}) == 3
    assert len({each["other/loss"] for each in found}) == 1  # files of another set are measured whole
    for out, split in zip(printed, ("train", "validation", "test"), strict=True):
        assert out.startswith(f"{trained}, step 2 (the latest): {split} split of text:")
        rows, of = re.search(r"^eval: (\d+) of (\d+) rows", out, re.MULTILINE).groups()
        assert rows == of
        assert re.search(
            r"^eval/loss \S+  95 % interval \S+ to \S+ \(bootstrap over \d+ rows", out, re.MULTILINE
        )
    kept = {each["split"]: each for each in json.loads((trained / "evaluation.json").read_text())}
    for split, each in zip(("train", "validation", "test"), found, strict=True):
        assert kept[split]["steps"] == [2] and kept[split]["source"].startswith("text:")
        assert kept[split]["results"] == pytest.approx(each, rel=1e-5)
    limited = evaluated(capfd, trained, "--split=train", "--config.train.evaluate_batches=1")
    assert re.search(r"^eval: 16 of \d\d+ rows", limited, re.MULTILINE)
    again = json.loads((trained / "evaluation.json").read_text())
    assert [each["keys"] for each in again if each["split"] == "train"] == [
        {},
        {"train.evaluate_batches": "1"},
    ]


@pytest.mark.thorough
def test_the_batch_size_changes_nothing(capfd, trained):
    found = [
        runs.measured(evaluated(capfd, trained, f"--config.evaluate.batch_size={size}")) for size in (0, 32)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.thorough
def test_any_number_of_devices_measures_the_same(capfd, trained):
    process = runs.start([f"--workdir={trained}", "--mode=evaluate", "--split=test"])
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert runs.measured(out) == pytest.approx(
        runs.measured(evaluated(capfd, trained, "--split=test")), rel=1e-5
    )


@pytest.mark.thorough
def test_a_file_is_measured_whole(capfd, trained, other):
    found = [evaluated(capfd, trained, f"--input={each}") for each in (other, f"text:{other}")]
    assert found[0] == found[1] and found[0].startswith(
        f"{trained}, step 2 (the latest): the whole of text:{other}"
    )
    beside = runs.measured(evaluated(capfd, trained))
    assert runs.measured(found[0])["eval/loss"] == beside["other/loss"] and "other/loss" not in runs.measured(
        found[0]
    )
    text = other.read_text()
    assert f"{len(text.encode()) + 1:,} targets" in found[0]  # every byte, and the end


@pytest.mark.thorough
def test_what_cannot_be_measured_is_one_line(capfd, trained, tmp_path):
    run = [f"--workdir={trained}", "--mode=evaluate"]
    before = runs.listing(trained)
    for arguments, expected in {
        "--input=/no/such": "--input: there is no file '/no/such'; expected one, or a source: stdlib, text",
        "--input=text:/no/such": "text:/no/such: no such file",
        "--config.train.steps=9": "--config.train.steps: it concerns training, and does not change",
        "--config.optimizer.name=sgd": "--config.optimizer.name: it concerns training",
        "--config.sample.top_k=1": "--config.sample.top_k: no evaluator of this run samples; see evalu",
        "--step=7": "no checkpoint of step 7; there are 1, 2",
        "--step=x": "--step: 'x'; expected a number, best or latest",
        "--step=best": "no checkpoint was saved with train.keep_best",
        "--split=tets": "--split: 'tets'; did you mean 'test'?",
        "--output=x": "--output: language_modeling has no labels; --mode=predict writes its answers",
        "--per_document=no/such.jsonl": "--per_document: there is no folder 'no'",
        f"--per_document={tmp_path}": f"--per_document: {tmp_path} is a folder; expected a file",
    }.items():
        assert expected in fails(capfd, [*run, arguments])
    assert runs.listing(trained) == before
    assert "no checkpoint of step 7" in fails(capfd, [f"--workdir={trained}@7", "--mode=evaluate"])
    assert "give one of them" in fails(capfd, [f"--workdir={trained}@1", "--mode=evaluate", "--step=2"])
    assert "names a checkpoint" in fails(capfd, [f"--workdir={trained}@1"])


@pytest.mark.thorough
def test_a_step_is_chosen(capfd, trained, corpus, tmp_path):
    first = evaluated(capfd, trained, "--step=1")
    assert first.startswith(f"{trained}, step 1: validation split")
    assert first == evaluated(capfd, f"{trained}@1")
    assert runs.measured(first)["eval/loss"] != runs.measured(evaluated(capfd, trained))["eval/loss"]
    for mode in ("predict --prompt=x --temperature=0", "analyze --words=a,e"):
        arguments = mode.split()
        printed = []
        for run in ([f"--workdir={trained}@1"], [f"--workdir={trained}", "--step=1"]):
            capfd.readouterr()
            assert launch.main([*run, f"--mode={arguments[0]}", *arguments[1:]]) == 0, capfd.readouterr().err
            printed.append(capfd.readouterr().out)
        assert printed[0] == printed[1]


@pytest.mark.thorough
def test_a_run_begins_with_a_step_of_another(trained, corpus, tmp_path):
    keys = [("initialize_from", f"{trained}@1"), ("data.source", corpus), ("optimizer.warmup_steps", "1")]
    values = opening.read_config("configs/lm.py:tiny", keys)
    config = opening.inherit(values, opening.RunFolder(tmp_path / "new"))
    run = opening.open_run(opening.RunFolder(tmp_path / "new"), opening.check_config(config))
    assert run.warm_start.origin == Checkpoint(trained, 1)
    with run.placed():
        taken = run.warm_start.apply(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), run.abstract.params))
    there = opening.load(f"{trained}@1")[1]
    jax.tree.map(np.testing.assert_array_equal, taken, there)
    other = opening.load(trained)[1]
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), there, other)))
    config["initialize_from"] = f"{trained}@9"
    with pytest.raises(UserError, match=r"initialize_from: .*no checkpoint of step 9; there are 1, 2"):
        _ = opening.open_run(opening.RunFolder(tmp_path / "new"), opening.check_config(config)).warm_start


ERRORS = {
    "--config.evaluate.also=gzip": "evaluate.also: 'gzip' is not an evaluator; expected one of compressors",
    "--config.evaluate.sets.eval=text:x": "config.evaluate.sets: 'eval' names a set; expected a name of",
    "--config.evaluate.sets.far=text:/no/such": "evaluate.sets.far: text:/no/such: no such file",
    "--config.evaluate.sets.far=xls:x": "evaluate.sets.far: 'xls:x': unknown source",
    "--config.evaluate.batch_size=9": "evaluate.batch_size: 9 is not a multiple of 2",
}


@pytest.mark.parametrize("argument", ERRORS)
def test_what_is_wrong_with_the_keys_is_one_line_before_anything_is_written(
    capfd, tmp_path, corpus, argument
):
    assert launch.main(runs.tiny(corpus, tmp_path / "run", argument)) == 2
    error = capfd.readouterr().err
    assert ERRORS[argument] in error and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_folder_with_a_key_that_is_gone_still_opens(trained, tmp_path):
    values = json.loads((trained / "config.json").read_text())
    values["data"]["evaluate_on"] = "test"
    del values["data"]["overlap"]  # which is newer
    del values["evaluate"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = opening.check_config(stored_config(opening.RunFolder(tmp_path)))
    assert config.evaluate.batch_size == 0 and dict(config.evaluate.sets) == {}
