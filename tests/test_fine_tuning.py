import json
import re
import shutil

import jax
import numpy as np
import pytest

import launch
from experiments import modes
from transformer.errors import UserError
from transformer.training.initialize import TakeOver

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences with labels, and the same as plain text."""
    folder = tmp_path_factory.mktemp("data")
    rows = [
        (f"the {word} number {i} is here", label)
        for i in range(60)
        for word, label in (("good", "yes"), ("bad", "no"))
    ]
    (folder / "a.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    (folder / "a.txt").write_text("".join(f"{text}\n\n" for text, _ in rows))
    return folder


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "bert"
    source = f"--config.data.source=text:{data}/a.txt"
    keys = ["--config.model.norm=rms", "--config.data.document=line"]
    assert launch.main(["--config=configs/bert.py:tiny", f"--workdir={folder}", source, *keys]) == 0
    return folder


def tune(data, pretrained, workdir, *keys):
    source = f"--config.data.source=tsv:{data}/a.tsv"
    start = f"--config.initialize_from={pretrained}"
    config = "--config=configs/finetune_classification.py:tiny"
    return launch.main([config, f"--workdir={workdir}", source, start, *keys])


def test_one_that_was_killed_before_its_first_checkpoint_begins_with_them_again(
    data, pretrained, tmp_path, capfd
):
    """A folder of checkpoints without any, or with one that is not complete, is no beginning."""
    workdir, rate = tmp_path / "tuned", "--config.optimizer.learning_rate=0.0"
    assert tune(data, pretrained, workdir, rate) == 0
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "checkpoints" / "1.orbax-checkpoint-tmp-7").mkdir(parents=True)
    capfd.readouterr()
    assert tune(data, pretrained, workdir, rate) == 0
    assert "taken  encoder/trunk/blocks" in capfd.readouterr().out
    (_, theirs), (_, ours) = modes.load(pretrained), modes.load(workdir)
    jax.tree.map(np.testing.assert_array_equal, theirs["encoder"], ours["encoder"])


def test_a_run_begins_with_another_s_parameters_model_and_tokenizer(data, pretrained, tmp_path, capfd):
    workdir = tmp_path / "tuned"
    # With a rate of 0 what was taken over is what the first checkpoint holds.
    assert tune(data, pretrained, workdir, "--config.optimizer.learning_rate=0.0") == 0
    out = capfd.readouterr().out
    assert "taken  encoder/trunk/blocks" in out and "new    head/classes/kernel" in out
    assert "left   transform/kernel" in out
    config = json.loads((workdir / "config.json").read_text())
    assert config["model"]["norm"] == "rms"
    assert (workdir / "tokenizer.json").read_text() == (pretrained / "tokenizer.json").read_text()
    (_, theirs), (_, ours) = modes.load(pretrained), modes.load(workdir)
    jax.tree.map(np.testing.assert_array_equal, theirs["encoder"], ours["encoder"])
    # The folder is whole by itself: it goes on, and answers, when the other one is gone.
    moved = tmp_path / "moved"
    shutil.copytree(pretrained, moved)
    other = tmp_path / "other"
    assert tune(data, moved, other) == 0
    shutil.rmtree(moved)
    assert tune(data, moved, other, "--config.train.steps=3") == 0
    capfd.readouterr()
    assert launch.main([f"--workdir={other}", "--mode=predict", "--prompt=the good number"]) == 0
    label, *rest = capfd.readouterr().out.strip().split("\t")
    assert label in ("yes", "no") and sum(float(each.split("=")[1]) for each in rest) == pytest.approx(
        1, abs=1e-3
    )


def test_lora_leaves_all_else_as_it_was(data, pretrained, tmp_path):
    keys = ["--config.model.lora_rank=2", "--config.optimizer.train_only=lora,head", "--config.train.steps=3"]
    assert tune(data, pretrained, tmp_path / "run", *keys) == 0
    (_, theirs), (_, ours) = modes.load(pretrained), modes.load(tmp_path / "run")
    moved = 0
    flat = dict(jax.tree_util.tree_leaves_with_path(theirs["encoder"]))
    for path, leaf in jax.tree_util.tree_leaves_with_path(ours["encoder"]):
        if path in flat:
            np.testing.assert_array_equal(leaf, flat[path])
        else:
            assert "lora" in jax.tree_util.keystr(path)
            moved += bool(np.abs(leaf).any())
    assert moved == 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["--config.model.lora_rank=2"],
            "^error: config.optimizer.train_only: with model.lora_rank",
        ),
        (
            ["--config.model.d_ff=32"],
            "^error: initialize_from: .* has other shapes: encoder/trunk/",
        ),
        (
            ["--config.model.num_token_types=3"],
            "other shapes: encoder/token_types/table is .2, 32. there and .3, 32. here",
        ),
        (
            ["--config.model.embedding_norm=true"],
            "lacks encoder/trunk/embedding_norm/scale .initialize_strict=false",
        ),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_written(data, pretrained, tmp_path, capfd, keys, message):
    assert tune(data, pretrained, tmp_path / "run", *keys) == 2
    captured = capfd.readouterr()
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err)
    assert not (tmp_path / "run").exists()


def test_what_is_missing_begins_anew_where_that_is_allowed(data, pretrained, tmp_path):
    keys = ["--config.model.embedding_norm=true", "--config.initialize_strict=false"]
    assert tune(data, pretrained, tmp_path / "run", *keys) == 0


def test_no_run_to_begin_with(data, tmp_path, capfd):
    assert tune(data, tmp_path / "none", tmp_path / "run") == 2
    assert "none does not exist" in capfd.readouterr().err
    with pytest.raises(UserError, match="has no checkpoints"):
        TakeOver.plan(tmp_path, {}, ())
