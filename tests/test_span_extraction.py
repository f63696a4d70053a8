import json
import re

import jax
import numpy as np
import pytest

import launch
from tests import runs
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of letters, some longer than a window, with three capitals in each, which are asked for."""
    rng, records = np.random.default_rng(0), []
    for i in range(400):
        before, after = ("".join(rng.choice(list("abc "), rng.integers(0, 60))) for _ in range(2))
        answer = "".join(rng.choice(list("XYZ"), 3))
        answers = {"text": [answer], "answer_start": [len(before)]}
        records.append({"question": f"{i % 7}?", "context": before + answer + after, "answers": answers})
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (path.parent / "a.txt").write_text("".join(f"{record['context']}\n" for record in records))
    return path


KEYS = ["data.sequence_length=64", "data.question_length=8", "data.stride=24", "answer.max_tokens=8"]


def train(data, workdir, *keys):
    config = ["--config=configs/finetune_question_answering.py:tiny", f"--workdir={workdir}"]
    overrides = [f"data.source=jsonl:{data}", *KEYS, *keys]
    return launch.main(config + [f"--config.{key}" for key in overrides])


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    keys = ["train.steps=160", "train.batch_size=16", "optimizer.learning_rate=1e-2", "answer.n_best=3"]
    more = ["answer.examples=0", "train.evaluate_batches=0", "model.dropout=0.0", "model.num_layers=1"]
    assert train(data, workdir, *keys, *more) == 0
    return workdir


@pytest.mark.thorough
def test_it_learns_to_point_and_answers_from_any_window(run, capfd):
    assert launch.main([f"--workdir={run}", "--mode=evaluate"]) == 0
    measured = runs.measured(capfd.readouterr().out)
    assert measured["answer/exact_match"] > 80 and measured["answer/f1"] > 80
    # Far longer than any window, and the answer far from its beginning; the spaces are the context's own.
    context = "ab c" * 60 + "\n ZYX\\ " + "b ca" * 30
    prompt = "1?\t" + context.replace("\\", "\\\\").replace("\n", "\\n")
    assert launch.main([f"--workdir={run}", "--mode=predict", f"--prompt={prompt}"]) == 0
    lines = [line.rsplit("\t", 1) for line in capfd.readouterr().out.splitlines()]
    p = [float(each) for _, each in lines]
    assert len(p) == 3 and p == sorted(p, reverse=True) and 0 < p[0] <= sum(p) <= 1.0002
    assert all(answer in context for answer, _ in lines)
    assert len({answer for answer, _ in lines}) == 3


@pytest.mark.thorough
def test_an_answer_is_the_best_pair_of_the_model_s_own_softmaxes(run):
    """With one window and no limit p(span) is p(start) p(end), renormalised over all spans."""
    loaded, params = opening.load(run, [("answer.max_tokens", "64")])
    experiment = loaded.experiment
    reading = experiment.data.read("1?", "abc XYZ ab")
    ((tokens, types),) = reading.inputs
    logits = jax.jit(lambda p: experiment.model.apply({"params": p}, tokens[None], types_bt=types[None]))(
        params
    )
    start, end = np.asarray(jax.nn.softmax(logits[0, reading.before : -1], axis=0), np.float64).T
    p = np.triu(np.outer(start, end))
    ((_, spans),) = experiment.answers(params, [reading])
    assert (spans[0].first, spans[0].last) == np.unravel_index(p.argmax(), p.shape)
    np.testing.assert_allclose(spans[0].probability, p.max() / p.sum(), rtol=1e-4)


@pytest.mark.thorough
def test_answers_are_the_same_alone_and_among_others(run, data):
    loaded, params = opening.load(run)
    records = [json.loads(line) for line in data.read_text().splitlines()[:40]]
    texts = [f"{record['question']}\t{record['context']}" for record in records]
    together = list(loaded.experiment.predict(params, texts))
    assert len(together) == 40
    for text, answers in list(zip(texts, together, strict=True))[::9]:
        (alone,) = loaded.experiment.predict(params, [text])
        assert [line.split("\t")[0] for line in alone] == [line.split("\t")[0] for line in answers]


@pytest.mark.thorough
def test_a_question_that_cannot_be_read_has_the_empty_answer(run, data, tmp_path, capfd):
    """It is left out of the windows, and is not a reason to end an evaluation."""
    records = [json.loads(line) for line in data.read_text().splitlines()[:6]]
    records[2]["question"] = records[5]["question"] = ""
    records[4] |= {"context": "", "answers": {"text": [], "answer_start": []}}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    loaded, params = opening.load(run)
    texts = [f"{record['question']}\t{record['context']}" for record in records]
    answers = iter(loaded.experiment.predict(params, [texts[i] for i in (0, 1, 3)]))
    best = ["" if i in (2, 4, 5) else next(answers)[0].split("\t")[0] for i in range(6)]
    right = sum(
        answer == "".join(record["answers"]["text"]) for answer, record in zip(best, records, strict=True)
    )
    source = f"--config.data.validation_source=jsonl:{path}"
    assert launch.main([f"--workdir={run}", "--mode=evaluate", source]) == 0
    measured = runs.measured(capfd.readouterr().out)
    assert measured["answer/exact_match"] == pytest.approx(100 * right / 6, abs=0.1) and right > 1


@pytest.mark.thorough
def test_questions_without_an_answer_may_be_answered_by_nothing(data, tmp_path):
    records = [json.loads(line) for line in data.read_text().splitlines()]
    for record in records[::2]:
        record["context"] = record["context"].lower()
        record["answers"] = {"text": [], "answer_start": []}
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    keys = ["train.steps=160", "train.batch_size=16", "optimizer.learning_rate=1e-2"]
    more = ["answer.allow_none=true", "model.dropout=0.0", "model.num_layers=1"]
    assert train(path, tmp_path / "run", *keys, *more) == 0
    loaded, params = opening.load(tmp_path / "run")
    (nothing,), (found,) = loaded.experiment.predict(params, ["1?\tab cab cc ab", "1?\tab ca ZXY ab"])
    assert nothing.split("\t")[0] == "" and float(nothing.split("\t")[1]) > 0.5
    assert found.split("\t")[0].strip(" abc") != ""
    # Where nothing is not an answer, it is said how many questions are answered all the same.
    forced, _ = opening.load(tmp_path / "run", [("answer.allow_none", "false")])
    unanswered = sum(not question.answers for question in forced.experiment.data.questions("train"))
    (said,) = set(forced.experiment.data_lines()) - set(loaded.experiment.data_lines())
    assert said.startswith(f"{unanswered} questions have no answer, but get one: answer.allow_none is false")


@pytest.mark.thorough
def test_it_begins_with_a_pretrained_encoder(data, tmp_path, capfd):
    keys = [f"--config.data.source=text:{data.parent}/a.txt", "--config.data.document=line"]
    assert launch.main(["--config=configs/bert.py:tiny", f"--workdir={tmp_path / 'bert'}", *keys]) == 0
    start = [f"initialize_from={tmp_path / 'bert'}", "optimizer.learning_rate=0.0"]
    assert train(data, tmp_path / "run", *start) == 0
    out = capfd.readouterr().out
    assert "taken  encoder/trunk/blocks" in out and "new    head/classes/kernel" in out
    (_, theirs), (_, ours) = opening.load(tmp_path / "bert"), opening.load(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, theirs["encoder"], ours["encoder"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("no tab", "error: --prompt or --input: text 1 has no tab; expected QUESTION, a tab, "),
        ("\tcontext", "error: --prompt or --input: text 1 has no question in '', 'context'"),
        ("question?\t", "error: --prompt or --input: text 1 has no text in 'question?', ''"),
    ],
)
def test_a_line_that_is_none_is_refused(run, capfd, prompt, message):
    assert launch.main([f"--workdir={run}", "--mode=predict", f"--prompt={prompt}"]) == 2
    captured = capfd.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("data.stride=60", "config.data.stride: 60; expected 1 to 53"),
        ("data.sequence_length=512", "data.sequence_length: 512 is longer than model.max_length 256"),
        ("answer.max_tokens=0", "config.answer.max_tokens: 0; expected at least 1"),
        ("data.misplaced=ignore", "config.data.misplaced: 'ignore'"),
        ("data.answers_field=answer", "a.jsonl:1: no field 'answer'; expected"),
    ],
)
def test_a_key_that_cannot_be_is_refused(data, tmp_path, capfd, key, message):
    assert train(data, tmp_path / "run", key) == 2
    captured = capfd.readouterr()
    assert re.search(re.escape(message), captured.err) and captured.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
