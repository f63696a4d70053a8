"""Generated problems whose answers can be checked: sums, sorting, Countdown, ListOps.

Record i of a split is a function of the split and i.
"""

import random
from collections.abc import Callable
from typing import Any

from transformer.data.sources.base import Source, falls_in
from transformer.data.sources.options import Options
from transformer.errors import UserError, suggest

SIZES = {"train": 20_000, "validation": 500, "test": 500}

LARGEST = 12
"""The largest size of a problem."""


def addition(rng: random.Random, size: int) -> tuple[str, str]:
    """Two numbers of at most `size` digits, and their sum: "47+385", "432"."""
    a, b = (rng.randrange(10**size) for _ in range(2))
    return f"{a}+{b}", str(a + b)


def sorting(rng: random.Random, size: int) -> tuple[str, str]:
    """`size` numbers below 100, and the same in ascending order: "70 3 9", "3 9 70"."""
    numbers = [rng.randrange(100) for _ in range(size)]
    return " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers)))


def countdown(rng: random.Random, size: int) -> tuple[str, str]:
    """`size` numbers below 10 and a target, and an expression with this value that uses each number once:
    "3 7 2 = 20", "(3+7)*2"."""
    numbers = [rng.randrange(1, 10) for _ in range(size)]
    order = rng.sample(numbers, size)
    value, text = order[0], str(order[0])
    for i, number in enumerate(order[1:], 1):
        operator = rng.choice("+-*" if value >= number else "+*")
        text = f"({text})" if operator == "*" and i > 1 else text
        text = f"{text}{operator}{number}"
        value = {"+": value + number, "-": value - number, "*": value * number}[operator]
    return f"{' '.join(map(str, numbers))} = {value}", text


def listops(rng: random.Random, size: int) -> tuple[str, str]:
    """An expression of ListOps with `size` nested operations on digits, and its value:
    "[MAX 2 9 [MIN 4 7 ] 0 ]", "9". Source: Nangia and Bowman 2018."""
    values, inner = [rng.randrange(10) for _ in range(rng.randint(2, 4))], None
    texts = list(map(str, values))
    if size > 1:
        inner, answer = listops(rng, size - 1)
        place = rng.randrange(len(texts) + 1)
        texts.insert(place, inner)
        values.insert(place, int(answer))
    name = rng.choice(("MAX", "MIN", "MED", "SM"))
    value = {"MAX": max(values), "MIN": min(values), "SM": sum(values) % 10}
    return f"[{name} {' '.join(texts)} ]", str(value.get(name, sorted(values)[len(values) // 2]))


PROBLEMS: dict[str, tuple[Callable[[random.Random, int], tuple[str, str]], int]] = {
    "addition": (addition, 3),
    "sorting": (sorting, 5),
    "countdown": (countdown, 3),
    "listops": (listops, 2),
}
"""Kind -> (random generator, size) -> (prompt, answer), and the default size."""


class Problems(Source):
    """`problems:KIND` or `problems:KIND,SIZE`: {"prompt": "70 3 9", "answer": "3 9 70"}, by one of
    `PROBLEMS`.

    Splits are by a hash of the prompt, so that no prompt of validation or test occurs in training.

    Raises:
      UserError: an unknown kind, a size out of range, or a field other than prompt and answer.
    """

    FIELDS = ("prompt", "answer")
    divided_by = "prompt"
    are_apart = True

    def __init__(self, argument: str, split: str, options: Options) -> None:
        kind, _, size = argument.partition(",")
        if kind not in PROBLEMS:
            raise UserError(f"data.source=problems:{argument}: no kind {kind!r}; {suggest(kind, PROBLEMS)}")
        self._make, default = PROBLEMS[kind]
        if size and not (size.isdecimal() and 2 <= int(size) <= LARGEST):
            raise UserError(f"problems:{argument}: size {size!r}; expected a number from 2 to {LARGEST}")
        if options.field not in self.FIELDS:
            raise UserError(f"problems: no field {options.field!r}; fields there: prompt, answer")
        self.field, self._split, self._size = options.field, split, int(size or default)
        self.name = f"problems:{kind},{self._size} ({split})"
        self.identity = f"problems 1 {kind} {self._size} {split} {self.field}"

    def __len__(self) -> int:
        return SIZES[self._split]

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = random.Random(f"{self._split} {range(len(self))[index]}")
        while True:
            prompt, answer = self._make(rng, self._size)
            if falls_in(self._split, prompt.encode()):
                return {"prompt": prompt, "answer": answer}
