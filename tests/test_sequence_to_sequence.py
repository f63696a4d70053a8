"""Runs on pairs of texts, as a user starts them."""

import json
import re
from pathlib import Path

import pytest

import launch
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    lines = [f"number {i} of the lines" for i in range(60)]
    (folder / "a.en").write_text("\n".join(lines) + "\n")
    (folder / "a.de").write_text("\n".join(line.replace("number", "Zahl") for line in lines) + "\n")
    return folder


def tiny(config: str, workdir: Path, *more: str) -> list[str]:
    return [f"--config=configs/{config}.py:tiny", f"--workdir={workdir}", *more]


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("run") / "tiny"
    source = f"--config.data.source=aligned:{files}/a.en,{files}/a.de"
    assert launch.main(tiny("translation", workdir, source)) == 0
    return workdir


def test_a_run_leaves_scores_samples_and_pictures(trained):
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"eval/loss", "eval/perplexity", "generate/bleu"} <= last.keys()
    shown = (trained / "samples" / "00000002.txt").read_text()
    assert shown.count("source: number") == 3 and "wanted: Zahl" in shown and "written:" in shown
    assert (trained / "attention" / "00000002.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_an_unknown_token_to_suppress_is_refused_before_training(files, tmp_path, capfd):
    assert launch.main(tiny("translation", tmp_path / "run", "--config.generate.suppress=['<pad>']")) == 2
    said = capfd.readouterr().err
    assert "generate.suppress: '<pad>'; the tokenizer has no such token" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and "steps" not in said


@pytest.mark.thorough
def test_a_file_is_translated_line_by_line(trained, tmp_path, capfd):
    (tmp_path / "in.txt").write_text("number 1\nnumber 2\n\nnumber 4\n")
    command = [f"--workdir={trained}", "--mode=predict", f"--input={tmp_path / 'in.txt'}"]
    assert launch.main([*command, f"--output={tmp_path / 'out.txt'}"]) == 0, capfd.readouterr().err
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 4
    n_best = ["--config.generate.n_best=2", "--config.generate.with_scores=true"]
    assert launch.main([*command, *n_best]) == 0
    found = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert len(found) == 8
    scores = [float(score) for score, _ in found]
    assert all(best >= second for best, second in zip(scores[::2], scores[1::2], strict=True))


@pytest.mark.thorough
def test_the_test_split_and_a_file_of_pairs_are_measured_whole(files, trained, tmp_path, capfd):
    (tmp_path / "more.tsv").write_text("".join(f"number {i}\tZahl {i}\n" for i in range(7)))
    both = f"aligned:{files}/a.en,{files}/a.de"
    for given, pairs in {"--split=test": 3, f"--input={tmp_path}/more.tsv": 7, f"--input={both}": 60}.items():
        capfd.readouterr()
        assert launch.main([f"--workdir={trained}", "--mode=evaluate", given]) == 0
        out = capfd.readouterr().out
        assert f"generate: {pairs} of {pairs} pairs" in out, out
        score = re.search(r"^generate/bleu (\S+)(.*)$", out, re.MULTILINE)
        assert score[1] == "none" or ("95 % interval" in score[2] and "tok:13a" in score[2])
    kept = json.loads((trained / "evaluation.json").read_text())
    assert [each["source"] for each in kept] == [both, f"tsv:{tmp_path}/more.tsv", both]
    (tmp_path / "in.txt").write_text("number 1\tZahl 1\nnumber 2\tZahl 2\n")
    assert launch.main([f"--workdir={trained}", "--mode=predict", f"--input={tmp_path}/in.txt"]) == 2
    assert "every line has 2 columns; expected one source per line" in capfd.readouterr().err


@pytest.mark.thorough
def test_the_mean_of_the_last_checkpoints(files, tmp_path):
    import jax
    import numpy as np

    source = f"--config.data.source=aligned:{files}/a.en,{files}/a.de"
    keys = [f"--config.train.{key}" for key in ("checkpoint_every=1", "keep_last=2", "average_last=2")]
    keys += ["--config.optimizer.schedule=constant"]  # each step counts
    assert launch.main(tiny("translation", tmp_path / "run", source, *keys)) == 0
    run = opening.reopen_run(tmp_path / "run")
    each, mean = [run.restore_params(step) for step in (1, 2)], run.restore_params()
    middle = jax.tree.map(lambda a, b: (a + b) / 2, *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), mean, middle)
    assert np.abs(each[0]["final_norm"]["scale"] - each[1]["final_norm"]["scale"]).max() > 0


ERRORS = {
    "--config.data.source=aligned:{files}/a.en,{files}/short": "has 60 lines and .*short has 2 lines",
    "--config.data.source=aligned:{files}/a.en": "data.source: aligned:.*: expected two files",
    "--config.data.source=tsv:{files}/a.en": "a.en:1: no field 'target'; fields there: source",
    "--config.data.source_length=500": "config.data.source_length: 500 is longer than model.max_length 96",
    "--config.data.too_long=refuse --config.data.target_length=12": "data.too_long: pair 1 has",
    "--config.generate.n_best=9": "config.generate.n_best: 9; expected 1 to beam_size 4",
    "--config.generate.metric=bleu,rogue": "config.generate.metric: .bleu,rogue.; expected bleu, chrf",
    "--config.generate.batch_size=0": "config.generate.batch_size: 0; expected at least 1",
    "--config.generate.bleu_tokenizer=ja-mecab": "generate.bleu_tokenizer: ja-mecab: ",
    "--config.train.average_last=3": "config.train.average_last: 3; only keep_last 1",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_what_is_wrong_is_one_line(files, tmp_path, capfd, arguments):
    import re

    (files / "short").write_text("a\nb\n")
    source = f"--config.data.source=aligned:{files}/a.en,{files}/a.de"
    changed = arguments.replace("{files}", str(files)).split()
    assert launch.main(tiny("translation", tmp_path / "run", source, *changed)) == 2
    captured = capfd.readouterr()
    assert re.search(ERRORS[arguments], captured.err) and captured.err.count("\n") == 1, captured.err
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_source_that_is_too_long_is_said_or_refused(trained, tmp_path, capfd):
    (tmp_path / "in.txt").write_text("number 1\n" + "number 2 of the lines\n" * 2)
    command = [f"--workdir={trained}", "--mode=predict", f"--input={tmp_path / 'in.txt'}"]
    assert launch.main([*command, "--config.data.source_length=12"]) == 0
    found = capfd.readouterr()
    said = "2 texts, number 2 the first, are longer than data.source_length, 12 tokens: the rest is not read"
    assert found.err.count(said) == 1 and len(found.out.splitlines()) == 3
    assert launch.main(command) == 0
    assert "the rest is not read" not in capfd.readouterr().err
    refused = ["--config.data.source_length=12", "--config.data.too_long=refuse"]
    assert launch.main([*command, *refused]) == 2
    found = capfd.readouterr()
    assert "in.txt:2 has 22 tokens, its end among them; data.source_length is 12" in found.err
    assert found.err.count("\n") == 1


@pytest.mark.thorough
def test_a_table_of_sources_alone_is_answered(trained, tmp_path, capfd):
    (tmp_path / "in.tsv").write_text("id\tsource\n1\tnumber 1\n2\tnumber 2\n")
    assert launch.main([f"--workdir={trained}", "--mode=predict", f"--input=tsv:{tmp_path}/in.tsv"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2


@pytest.mark.thorough
def test_an_evaluation_says_what_it_measured_and_how(trained, files, tmp_path):
    (tmp_path / "test.tsv").write_text(
        "target\tsource\tother\n"
        + "".join(f"Zahl {i} of the lines\tnumber {i}{' and so on' * (i == 3)}\tZahl {i}\n" for i in range(9))
        + " \tnumber 9\t\n"
    )
    keys = {
        "data.validation_source": f"tsv:{tmp_path}/test.tsv",
        "data.reference_fields": "other",
        "data.source_length": "14",
        "generate.metric": "chrf,rouge,bleu",
        "generate.bleu_tokenizer": "char",
        "generate.examples": "6",
        "generate.batch_size": "3",
    }
    run, params = opening.load(trained, keys.items())
    evaluator = run.experiment.evaluators(run.put, "test")["generate"]
    with run.placed():
        found = evaluator(params)
    assert found.keys() == {"chrf", "rouge1", "rouge2", "rougeL", "rougeLsum", "bleu"}
    said = evaluator.describe()
    assert said["measured"] == (
        "6 of 9 pairs; 1 more left out: one side is empty; 1 sources truncated to 14 tokens"
    )
    assert "nrefs:2" in said["bleu"] and "tok:char" in said["bleu"] and "nrefs:2" in said["chrf"]
    assert all("95 % interval" in said[name] for name in found)
    lines = run.experiment.result_lines({f"generate/{name}": value for name, value in found.items()})
    assert lines[0].startswith("on 6 of 9 pairs of the validation split: chrf ") and len(lines) == 4


@pytest.mark.thorough
def test_beams_of_any_number_of_sources_are_the_same(trained):
    texts = [f"number {i} of the {'long ' * (i % 4)}lines" for i in range(7)]
    written = []
    for size in (1, 3, 16):
        run, params = opening.load(trained, [("generate.batch_size", str(size))])
        with run.placed():
            written.append(list(run.experiment.predict(params, texts)))
    assert written[0] == written[1] == written[2]
