import json
import math
from types import SimpleNamespace

import pytest

import launch
from experiments.evaluation.evaluators import named_evaluators
from experiments.evaluation.multiple_choice import MultipleChoice, joined
from tests import runs
from transformer.errors import UserError
from transformer.evaluation.scoring import Score

pytestmark = pytest.mark.usefixtures("in_root")


class Scored:
    """An experiment that finds a continuation as likely as a table says."""

    continues = True

    def __init__(self, tmp_path, likelihoods: dict[tuple[str, str], float]) -> None:
        self.data = SimpleNamespace(config=SimpleNamespace(cache_dir=str(tmp_path / "cache")))
        self.config = SimpleNamespace(experiment="toy", evaluate=SimpleNamespace(others=[]))
        self._likelihoods = likelihoods

    def row(self, text, continuation):
        if len(continuation) > 9:
            raise UserError(f"a continuation of {len(continuation)} tokens; the model reads 9")

    def score(self, params, pairs):
        return (Score(self._likelihoods[pair], 1, False) for pair in pairs)


def write(tmp_path, records: list) -> str:
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(tmp_path / "q.jsonl")


def test_the_likeliest_choice_is_the_answer_also_by_length(tmp_path):
    questions = [
        {"question": "a?", "choices": ["x", "yyyy"], "answer": 1},
        {"question": "b? ", "choices": ["x", "yyyy"], "answer": "yyyy"},
        {"question": "c?", "choices": ["u", "v", " w"], "answer": 2},
    ]
    likelihoods = {
        ("a?", " x"): -1.0, ("a?", " yyyy"): -2.0,  # by length -1 and -0.5
        ("b? ", "x"): -1.0, ("b? ", "yyyy"): -2.0,
        ("c?", " u"): -3.0, ("c?", " v"): -2.0, ("c?", " w"): -1.0,  # -3, -2, -0.5
    }  # fmt: skip
    found = MultipleChoice(Scored(tmp_path, likelihoods), None, "test", write(tmp_path, questions))
    assert found(None) == {"accuracy": pytest.approx(1 / 3), "accuracy_by_length": 1}
    said = found.describe()
    assert said["measured"] == f"3 questions; by chance {(0.5 + 0.5 + 1 / 3) / 3:.3f}"
    assert [*said] == ["measured", *found.names(None)]


def test_a_space_joins_only_where_there_is_none():
    assert [joined(*each) for each in (("a", "b"), ("a ", "b"), ("a", "\nb"), ("", "b"))] == [
        " b",
        "b",
        "\nb",
        "b",
    ]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"question": "a", "choices": ["x"], "answer": 0}, "expected a list of two or more different texts"),
        ({"question": "a", "choices": ["x", "x"], "answer": 0}, "two or more different texts"),
        ({"question": "a", "choices": "xy", "answer": 0}, "two or more different texts"),
        ({"question": "a", "choices": ["x", "y"], "answer": 2}, "answer 2; expected the number"),
        ({"question": "a", "choices": ["x", "y"], "answer": True}, "answer True"),
        ({"question": "a", "choices": ["x", "y"], "answer": "z"}, "answer 'z'"),
        ({"choices": ["x", "y"], "answer": 0}, "no field 'question'"),
        ({"question": "a", "choices": ["x", 9 * "y"], "answer": 0}, "choice 1: a continuation of 10 tokens"),
    ],
)  # fmt: skip
def test_a_bad_question_is_refused_by_file_and_line(tmp_path, record, why):
    good = {"question": "a", "choices": ["x", "y"], "answer": 0}
    with pytest.raises(UserError) as error:
        MultipleChoice(Scored(tmp_path, {}), None, "test", write(tmp_path, [good, record]))
    assert f"{tmp_path}/q.jsonl:2: " in str(error.value) and why in str(error.value)


@pytest.mark.parametrize("text", ["", "\n\n", " \n"])
def test_a_file_without_questions_is_refused(tmp_path, text):
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(UserError) as error:
        MultipleChoice(Scored(tmp_path, {}), None, "test", str(tmp_path / "q.jsonl"))
    said = str(error.value)
    assert said.startswith("evaluate.also: choices: ") and str(tmp_path / "q.jsonl") in said


@pytest.mark.parametrize(
    ("also", "why"),
    [
        ("choices", "evaluate.also: 'choices'; expected choices:FILE"),
        ("positions:a", "expected positions alone"),
        ("choises:a", "did you mean 'choices'"),
        ("choices:/none.jsonl", "evaluate.also: choices: jsonl:/none.jsonl: no such file"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path, also, why):
    experiment = Scored(tmp_path, {})
    experiment.config.evaluate.others = [also]
    with pytest.raises(UserError, match=why):
        named_evaluators(experiment, None, "test")


@pytest.mark.thorough
def test_it_measures_a_run_as_score_does(tmp_path, capfd):
    source = runs.write_corpus(tmp_path / "corpus")
    assert launch.main(runs.tiny(source, tmp_path / "run")) == 0
    questions = [
        {"question": f"number {i}", "choices": ["is ü", "are", "was it"], "answer": i % 3} for i in range(6)
    ]
    file = write(tmp_path, questions)
    capfd.readouterr()
    evaluate = [f"--workdir={tmp_path}/run", "--mode=evaluate", f"--config.evaluate.also=choices:{file}"]
    assert launch.main(evaluate) == 0, capfd.readouterr().err
    measured = runs.measured(capfd.readouterr().out)
    pairs = [(each["question"], f" {choice}") for each in questions for choice in each["choices"]]
    (tmp_path / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    assert launch.main([f"--workdir={tmp_path}/run", "--mode=score", f"--input={tmp_path}/pairs.tsv"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.strip()]
    scores = [float(line.split("\t")[0]) for line in lines[-len(pairs) :]]
    right = [max(range(3), key=lambda k, i=i: scores[3 * i + k]) == i % 3 for i in range(6)]
    assert math.isclose(measured["choices/accuracy"], sum(right) / 6, abs_tol=1e-3)
