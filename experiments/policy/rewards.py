"""Rewards that can be checked: functions (prompt, answer, record) -> float of an answer that a model wrote.

`record` has the fields of the record, under "answer" the text of the answer that the data give, and under
"tool_calls" its calls of tools. A file of `--include` adds a reward by a line,
`REWARDS["short"] = lambda prompt, answer, record: -len(answer)`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from experiments.policy.arithmetic import evaluate, evaluate_lists
from experiments.policy.called import calls_in
from transformer.errors import UserError, brief

Reward = Callable[[str, str, Mapping[str, Any]], float]

NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]*[1-9][0-9]*)?")


def exact(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """1 if the answer is that of the record, up to case, white space, and a full stop at the end; else 0."""
    return float(_normalized(answer) == _normalized(_expected(record)))


def numeric(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """1 if the last number in the answer equals the last one in that of the record, exactly: 0.50 is 1/2."""
    last, expected = _last_number(answer), _last_number(_expected(record))
    if expected is None:
        raise ValueError(f"no number in the answer {record['answer']!r}")
    return float(last == expected)


def regex(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """1 if the regular expression that is the record's "pattern" (without one its answer) matches the whole
    answer, else 0."""
    pattern = record["pattern"] if "pattern" in record else _expected(record)
    return float(re.fullmatch(pattern, answer, re.DOTALL) is not None)


def sorting(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """The share of the whole numbers of the prompt that stand in the answer at their place in ascending
    order; 0 if the answer has more numbers or fewer."""
    numbers, written = (re.findall(r"-?[0-9]+", text) for text in (prompt, answer))
    if len(numbers) != len(written):
        return 0.0
    return sum(a == b for a, b in zip(sorted(numbers, key=int), written, strict=True)) / len(numbers)


def countdown(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """1 if the answer is an expression of whole numbers, + - * / and parentheses whose value is the last
    number in the prompt, and in which the numbers before that are each used at most once; else 0."""
    *numbers, target = map(int, re.findall(r"[0-9]+", prompt))
    try:
        value, used = evaluate(answer)
    except ValueError:
        return 0.0
    return float(value == target and Counter(used) <= Counter(numbers))


def listops(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """1 if the answer is the value of the prompt, an expression of ListOps, else 0."""
    return float(answer.strip() == str(evaluate_lists(prompt)))


def tool_calls(prompt: str, answer: str, record: Mapping[str, Any]) -> float:
    """1 if the calls of tools in the answer are those of the record, in their order, else 0; of a record
    without calls 1 if there are none. Calls are read as `called.calls_in` says."""
    return float([*calls_in(answer)] == [*calls_in(json.dumps(record["tool_calls"]))])


REWARDS: dict[str, Reward] = {
    "exact": exact,
    "numeric": numeric,
    "regex": regex,
    "sorting": sorting,
    "countdown": countdown,
    "listops": listops,
    "tool_calls": tool_calls,
}
"""The values of the key `rollout.reward`."""


def scored(name: str, prompt: str, answer: str, record: Mapping[str, Any], place: str) -> float:
    """The reward of this name of an answer to the record at this place.

    Raises:
      UserError: the reward fails, or is not a finite number.
    """
    problem = f"the reward {name!r} of an answer to {place}"
    try:
        value = REWARDS[name](prompt, answer, record)
    except Exception as error:  # of the user's function, or of a record that is not what it expects
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"{problem} fails: {reason}; the answer is {brief(repr(answer), 100)}") from error
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{problem} is {brief(repr(value), 100)}; expected a finite number")
    return number


def _expected(record: Mapping[str, Any]) -> str:
    """The text of the record's answer.

    Raises:
      ValueError: it has none, which no answer equals.
    """
    if not record["answer"]:
        calls = record.get("tool_calls")
        remedy = "compare its calls of tools with the reward tool_calls" if calls else "leave the record out"
        raise ValueError(f"the record has no text of an answer: {remedy}")
    return record["answer"]


def _normalized(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def _last_number(text: str) -> Fraction | None:
    numbers = NUMBER.findall(text)
    if not numbers:
        return None
    above, _, below = numbers[-1].replace(",", "").partition("/")
    try:
        return Fraction(above) / Fraction(below or 1)
    except ValueError:  # Python reads numbers of at most 4,300 digits
        return None
