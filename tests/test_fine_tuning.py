import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import launch
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training import parallel
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.initialize import WarmStart
from transformer.training.state import State
from workdir import opening

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


@pytest.mark.thorough
def test_one_that_was_killed_before_its_first_checkpoint_begins_with_them_again(
    data, pretrained, tmp_path, capfd
):
    """A folder of checkpoints without any, or with one that is not complete, is not a beginning."""
    workdir, rate = tmp_path / "tuned", "--config.optimizer.learning_rate=0.0"
    assert tune(data, pretrained, workdir, rate) == 0
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "checkpoints" / "1.orbax-checkpoint-tmp-7").mkdir(parents=True)
    capfd.readouterr()
    assert tune(data, pretrained, workdir, rate) == 0
    assert "taken  encoder/trunk/blocks" in capfd.readouterr().out
    (_, theirs), (_, ours) = opening.load(pretrained), opening.load(workdir)
    jax.tree.map(np.testing.assert_array_equal, theirs["encoder"], ours["encoder"])


@pytest.mark.thorough
def test_an_optimizer_that_keeps_parameters_begins_with_those_that_were_taken(data, pretrained, tmp_path):
    """A schedule-free one at a rate of 0: its average is what it started with, and what is evaluated."""
    workdir, group = tmp_path / "tuned", "--config.optimizer."
    keys = {"name": "contrib.schedule_free_adamw", "learning_rate": 0.0, "weight_decay": 0.0}
    keys |= {"schedule": "constant", "layer_decay": 1.0}
    assert tune(data, pretrained, workdir, *(f"{group}{key}={value}" for key, value in keys.items())) == 0
    (_, theirs), (_, ours) = opening.load(pretrained), opening.load(workdir)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        theirs["encoder"],
        ours["encoder"],
    )


@pytest.mark.thorough
def test_a_run_begins_with_another_s_parameters_model_and_tokenizer(data, pretrained, tmp_path, capfd):
    workdir = tmp_path / "tuned"
    # With a rate of 0 what was taken over is what the first checkpoint holds.
    assert tune(data, pretrained, workdir, "--config.optimizer.learning_rate=0.0") == 0
    out = capfd.readouterr().out
    assert "taken  encoder/trunk/blocks" in out and "new    head/classes/kernel" in out
    assert "left   transform/kernel" in out
    assert re.search("data.source comes without splits: 1\\d\\d records to train on, .* --split=test;", out)
    config = json.loads((workdir / "config.json").read_text())
    assert config["model"]["norm"] == "rms"
    assert (workdir / "tokenizer.json").read_text() == (pretrained / "tokenizer.json").read_text()
    (_, theirs), (_, ours) = opening.load(pretrained), opening.load(workdir)
    jax.tree.map(np.testing.assert_array_equal, theirs["encoder"], ours["encoder"])
    # The folder is whole by itself: it continues, and answers, when the other one is gone.
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


@pytest.mark.thorough
def test_case_that_the_pretrained_tokenizer_leaves_out_is_left_out(data, tmp_path, capfd):
    keys = [f"--config.data.source=text:{data}/a.txt", "--config.data.document=line"]
    keys += ["--config.data.lowercase=true", f"--workdir={tmp_path}/bert"]
    assert launch.main(["--config=configs/bert.py:tiny", *keys]) == 0
    assert tune(data, tmp_path / "bert", tmp_path / "tuned") == 0
    answers = []
    for text in ("The GOOD number", "the good number", "the gold number"):
        capfd.readouterr()
        assert launch.main([f"--workdir={tmp_path}/tuned", "--mode=predict", f"--prompt={text}"]) == 0
        answers.append(capfd.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.thorough
def test_lora_leaves_all_else_as_it_was(data, pretrained, tmp_path):
    keys = ["--config.model.lora_rank=2", "--config.optimizer.train_only=lora,head", "--config.train.steps=3"]
    assert tune(data, pretrained, tmp_path / "run", *keys) == 0
    (_, theirs), (_, ours) = opening.load(pretrained), opening.load(tmp_path / "run")
    moved = 0
    flat = dict(jax.tree_util.tree_leaves_with_path(theirs["encoder"]))
    for path, leaf in jax.tree_util.tree_leaves_with_path(ours["encoder"]):
        if path in flat:
            np.testing.assert_array_equal(leaf, flat[path])
        else:
            assert "lora" in jax.tree_util.keystr(path)
            moved += bool(np.abs(leaf).any())
    assert moved == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["--config.model.lora_rank=2"],
            "^error: config.optimizer.train_only: '' with model.lora_rank 2",
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


@pytest.mark.thorough
def test_what_is_missing_begins_anew_where_that_is_allowed(data, pretrained, tmp_path):
    keys = ["--config.model.embedding_norm=true", "--config.initialize_strict=false"]
    assert tune(data, pretrained, tmp_path / "run", *keys) == 0


@pytest.fixture(scope="module")
def labelled(data, pretrained, tmp_path_factory):
    """A classifier for the labels "no" and "yes", with adapters."""
    folder = tmp_path_factory.mktemp("runs") / "labelled"
    keys = ["--config.model.lora_rank=2", "--config.optimizer.train_only=lora,head"]
    assert tune(data, pretrained, folder, *keys) == 0
    return folder


def begun(folder, start, rows, *overrides):
    """What a run on these (text, label) would take over of another."""
    folder.mkdir(exist_ok=True)
    (folder / "b.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    keys = [("initialize_from", str(start)), ("data.source", f"tsv:{folder}/b.tsv")]
    keys += [("data.validation_source", f"tsv:{folder}/b.tsv"), *overrides]
    values = opening.read_config("configs/finetune_classification.py:tiny", keys)
    new = RunFolder(folder / "run")
    run = opening.open_run(new, opening.check_config(opening.inherit(values, new), keys))
    return run, run.warm_start


LORA = (("model.lora_rank", "2"), ("optimizer.train_only", "lora,head"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "same", "strict"),
    [
        (("no", "yes"), True, "true"),
        (("no", "yes", "wéiß ned"), False, "true"),  # of another size
        (("no", "yes", "wéiß ned"), False, "false"),
        (("good", "ßad"), False, "true"),  # of one size, and other ones
        (("yes", "0"), False, "false"),  # one of them is the same
    ],
)
def test_labels_are_a_part_of_the_head(labelled, tmp_path, names, same, strict):
    rows = [(f"text {i}", names[i % len(names)]) for i in range(30)]
    run, found = begun(tmp_path, labelled, rows, *LORA, ("initialize_strict", strict))
    heads = {"head/classes/kernel", "head/classes/bias"}
    assert heads <= {*(found.taken if same else found.new)} and not heads & {*found.left}
    assert any("lora_up" in path for path in found.taken) and any("trunk" in path for path in found.taken)
    why = [line for line in found.table() if "its labels are" in line]
    expected = (
        f"  head is new: its labels are 'no', 'yes' there and {', '.join(map(repr, sorted(names)))} here"
    )
    assert why == ([] if same else [expected])
    with run.placed():
        fresh = jax.jit(lambda: parallel.unboxed(run.create()), out_shardings=run.shardings)().params
        begun_with = found.apply(fresh)
    _, theirs = opening.load(labelled)
    jax.tree.map(np.testing.assert_array_equal, begun_with["encoder"], theirs["encoder"])
    jax.tree.map(np.testing.assert_array_equal, begun_with["head"], (theirs if same else fresh)["head"])


@pytest.mark.thorough
def test_what_adapters_have_learned_is_not_left_in_silence(labelled, tmp_path):
    rows = [(f"text {i}", ("no", "yes")[i % 2]) for i in range(30)]
    with pytest.raises(UserError, match=r"has learned .*lora_down.*; model.lora_rank=2 takes them where"):
        _ = begun(tmp_path, labelled, rows)
    with pytest.raises(UserError, match=r"has other shapes: .*lora_down"):
        _ = begun(tmp_path, labelled, rows, ("model.lora_rank", "3"), LORA[1])
    _, found = begun(tmp_path, labelled, rows, ("initialize_strict", "false"))
    assert any("lora_up" in path for path in found.left) and not any("lora" in path for path in found.new)


@pytest.mark.thorough
def test_a_head_without_labels_is_not_one_with_labels(data, labelled, tmp_path):
    """A span's beginning and end are two outputs too."""
    lengths = ["sequence_length", "question_length", "stride"]
    small = [(f"data.{key}", value) for key, value in zip(lengths, ("64", "16", "16"), strict=True)]
    keys = [("initialize_from", str(labelled)), *LORA, *small]
    values = opening.read_config("configs/finetune_question_answering.py:tiny", keys)
    new = RunFolder(tmp_path / "run")
    run = opening.open_run(new, opening.check_config(opening.inherit(values, new), keys))
    assert "head/classes/kernel" in run.warm_start.new
    assert "  head is new: its labels are 'no', 'yes' there and none here" in run.warm_start.table()


@pytest.mark.parametrize(("keep_best", "expected"), [("-eval/accuracy", 2), ("eval/loss", 1), ("", 3)])
def test_the_best_checkpoint_is_what_a_run_begins_with(tmp_path, keep_best, expected):
    states = {
        step: State.create({"w": jnp.full(3, float(step))}, optax.sgd(0.1), False) for step in (1, 2, 3)
    }
    with Checkpoints(tmp_path / "checkpoints", keep_last=1, keep_best=keep_best) as checkpoints:
        for step, state in states.items():
            measured = {"eval/accuracy": 0.5 + 0.3 * (step == 2), "eval/loss": float(step)}
            checkpoints.save(step, state, measured)
            checkpoints.wait()
    (tmp_path / "config.json").write_text(json.dumps({"train": {"keep_best": keep_best}}))
    found = WarmStart.plan(tmp_path, {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}, ())
    assert found.origin.step == expected
    np.testing.assert_array_equal(found.apply({"w": jnp.zeros(3)})["w"], np.full(3, expected))


def test_no_run_to_begin_with(data, tmp_path, capfd):
    assert tune(data, tmp_path / "none", tmp_path / "run") == 2
    assert "none does not exist" in capfd.readouterr().err
    with pytest.raises(UserError, match=r"has no checkpoints; .* \(--mode=import makes one"):
        WarmStart.plan(tmp_path, {}, ())
