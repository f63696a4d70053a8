"""Rewards, the parsers behind them, and generated problems, which they find solved."""

import ast
import json
import random
import re
from fractions import Fraction

import pytest

from experiments.policy.arithmetic import evaluate, evaluate_lists
from experiments.policy.called import calls_in
from experiments.policy.rewards import REWARDS, scored
from transformer.data.sources import open_source
from transformer.data.sources.embedded.problems import PROBLEMS
from transformer.errors import UserError


@pytest.mark.parametrize(
    ("name", "prompt", "answer", "record", "reward"),
    [
        ("exact", "", " Paris. ", {"answer": "paris"}, 1),
        ("exact", "", "Par is", {"answer": "paris"}, 0),
        ("exact", "", "3.5", {"answer": "3.5."}, 1),
        ("numeric", "", "so it is 1,024.50", {"answer": "2049/2"}, 1),
        ("numeric", "", "12, then 13", {"answer": "12"}, 0),
        ("numeric", "", "-3", {"answer": "3"}, 0),
        ("numeric", "", "none", {"answer": "3"}, 0),
        ("numeric", "", "1/0", {"answer": "1"}, 0),
        ("numeric", "", "9" * 5000, {"answer": "1"}, 0),
        ("regex", "", "abbb", {"answer": "ab+"}, 1),
        ("regex", "", "abbbc", {"answer": "ab+"}, 0),
        ("regex", "", "a\nb", {"answer": "z", "pattern": "a.b"}, 1),
        ("sorting", "10 9 -2", "-2 9 10", {}, 1),
        ("sorting", "10 9 2", "2 10 9", {}, 1 / 3),
        ("sorting", "10 9 2", "2 9", {}, 0),
        ("sorting", "10 9 2", "9" * 5000 + " 9 10", {}, 2 / 3),
        ("countdown", "3 7 2 = 20", "(3+7)*2", {}, 1),
        ("countdown", "3 7 2 = 10", "7 + 3", {}, 1),
        ("countdown", "3 7 2 = 20", "3+7+2", {}, 0),
        ("countdown", "3 7 2 = 20", "7+7+3+3", {}, 0),
        ("countdown", "3 7 2 = 20", "20", {}, 0),
        ("countdown", "3 7 2 = 20", "(3+7)*2)", {}, 0),
        ("countdown", "8 3 3 8 = 24", "8/(3-8/3)", {}, 1),
        ("listops", "[MAX 2 9 [MIN 4 7 ] 0 ]", " 9", {}, 1),
        ("listops", "[MAX 2 9 [MIN 4 7 ] 0 ]", "90", {}, 0),
    ],
)
def test_a_reward_is_what_it_says(name, prompt, answer, record, reward):
    assert scored(name, prompt, answer, record, "here") == pytest.approx(reward)


CALL = '{"name": "add", "arguments": {"a": 1, "b": [2.0, null]}}'
CALLS = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": [2, None], "a": 1}}}]


@pytest.mark.parametrize(
    ("answer", "calls", "reward"),
    [
        (f"<think>{{}}</think>\n<tool_call>\n{CALL}\n</tool_call>", CALLS, 1),
        (CALL.replace("arguments", "parameters"), CALLS, 1),
        (CALL, [{"name": "add", "arguments": '{"a": 1, "b": [2, null]}'}], 1),
        (CALL, [{"name": "add", "arguments": {"a": True, "b": [2, None]}}], 0),
        (CALL, [{"name": "sub", "arguments": {"a": 1, "b": [2, None]}}], 0),
        (CALL[:-1], CALLS, 0),
        (CALL + CALL, CALLS * 2, 1),
        (CALL + CALL, CALLS, 0),
        (CALL + CALL.replace("add", "sub"), [{"name": "sub", "arguments": {}}, *CALLS], 0),
        (f'{CALL}{{"name": "sub", "arguments": {{}}}}', [{"name": "sub", "arguments": {}}, *CALLS], 0),
        ('{"name": "f", "arguments": {"x": {"name": "g", "arguments": {}}}}', [], 0),
        ('{"arguments": {}} {"name": 1, "arguments": {}} ["name"] {"name": "f"} {', [], 1),
        ('{"a":' * 20_000, CALLS, 0),
        ("3", [], 1),
    ],
)
def test_calls_are_equal_whatever_they_are_written_in(answer, calls, reward):
    assert scored("tool_calls", "", answer, {"answer": "", "tool_calls": calls}, "here") == reward


def test_a_call_within_the_arguments_of_a_call_is_no_call():
    (call,) = calls_in('{"name": "f", "arguments": {"x": {"name": "g", "arguments": {}}}}')
    assert json.loads(call) == ["f", {"x": {"name": "g", "arguments": {}}}]


@pytest.mark.parametrize("name", ["exact", "numeric", "regex"])
@pytest.mark.parametrize(
    ("calls", "remedy"), [(CALLS, "with the reward tool_calls"), ([], "leave the record")]
)
def test_a_record_without_a_text_to_compare_with_is_named(name, calls, remedy):
    with pytest.raises(UserError, match=f"to line 3 fails: .*no text of an answer: .*{remedy}"):
        scored(name, "", "", {"answer": "", "tool_calls": calls}, "line 3")


def test_the_value_of_an_expression_is_that_of_python():
    """Random expressions, with fractions in place of the numbers."""
    random.seed(0)

    def expression(depth: int) -> str:
        if not depth:
            return str(random.randrange(20))
        left, right = expression(random.randrange(depth)), expression(random.randrange(depth))
        return random.choice(("{} {} {}", "({}{}{})", "({}) {} ({})")).format(
            left, random.choice("+-*/"), right
        )

    values = 0
    for _ in range(300):
        text = expression(4)
        fractions = re.sub(r"\d+", r"Fraction(\g<0>)", text)
        try:
            expected = eval(fractions)
        except ZeroDivisionError:
            with pytest.raises(ValueError, match="division by 0"):
                evaluate(text)
            continue
        value, numbers = evaluate(text)
        assert value == expected and isinstance(value, Fraction)
        assert numbers == [int(n) for n in re.findall(r"\d+", text)]
        values += 1
    assert values > 150


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3 3",
        "2**3",
        "2//3",
        "-3",
        "3+",
        "(3",
        "3)",
        "()",
        "__import__('os')",
        "1e3",
        "0x3",
        "²",
        "٣",
        "1" * 257,
    ],
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ValueError, match=r"expected a number|after the expression|is not closed"):
        evaluate(text)


def test_values_of_listops():
    assert evaluate_lists("[SM 9 8 [MED 1 7 3 ] ]") == 0
    assert evaluate_lists("[MED 4 1 ]") == 4
    assert evaluate_lists("7") == 7
    for text in ("", "[MAX ]", "[MAX 1", "1 ]", "[AVG 1 2 ]", "1 2", "x"):
        with pytest.raises(ValueError, match="ListOps"):
            evaluate_lists(text)


def test_a_reward_that_fails_or_is_not_finite_names_the_record(monkeypatch):
    monkeypatch.setitem(REWARDS, "mine", lambda prompt, answer, record: record["length"] / len(answer))
    assert scored("mine", "", "ab", {"length": 3}, "a.jsonl:7") == 1.5
    with pytest.raises(UserError, match=r"'mine' of an answer to a\.jsonl:7 fails: KeyError: 'length'; the"):
        scored("mine", "", "ab", {}, "a.jsonl:7")
    with pytest.raises(UserError, match=r"a\.jsonl:7 fails: ZeroDivisionError: .*; the answer is ''"):
        scored("mine", "", "", {"length": 3}, "a.jsonl:7")
    for value in (float("nan"), float("inf"), None, "x"):
        monkeypatch.setitem(REWARDS, "mine", lambda *_, value=value: value)
        with pytest.raises(UserError, match=r"to a\.jsonl:7 is .*; expected a finite number"):
            scored("mine", "", "ab", {}, "a.jsonl:7")
    with pytest.raises(UserError, match=r"a\.jsonl:7 fails: ValueError: no number in the answer 'x'"):
        scored("numeric", "", "3", {"answer": "x"}, "a.jsonl:7")


SOLVED_BY = {"addition": "numeric", "sorting": "sorting", "countdown": "countdown", "listops": "listops"}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_generated_answers_are_right_and_splits_are_apart(kind):
    opened = {
        split: open_source(f"problems:{kind},4", split, field="prompt")
        for split in ("train", "validation", "test")
    }
    prompts = {}
    for split, source in opened.items():
        records = [source[index] for index in range(200)]
        prompts[split] = {record["prompt"] for record in records}
        for record in records:
            assert scored(SOLVED_BY[kind], record["prompt"], record["answer"], record, "here") == 1
            if kind == "addition":
                a, b = map(int, record["prompt"].split("+"))
                assert a + b == int(record["answer"])
        assert len(prompts[split]) > 100 and records == [source[index] for index in range(200)]
    assert not prompts["train"] & prompts["validation"] and not prompts["train"] & prompts["test"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("problems:sortin", "no kind 'sortin'; did you mean 'sorting'"),
        ("problems:sorting,1", "size '1'; expected a number from 2 to 12"),
        ("problems:sorting,x", "size 'x'; expected a number from 2 to 12"),
    ],
)
def test_a_problem_that_there_is_not_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        open_source(name, "train", field="prompt")
    with pytest.raises(UserError, match="no field 'text'"):
        open_source("problems:sorting", "train")


def test_no_reward_evaluates_code():
    for module in ("arithmetic", "rewards"):
        with open(f"experiments/policy/{module}.py") as file:
            names = {node.id for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.Name)}
        assert not names & {"eval", "exec", "compile"}
