"""Exact values of expressions that a model writes, by parsers: nothing is evaluated as code."""

import operator
import re
from collections.abc import Callable
from fractions import Fraction

LONGEST = 256
"""The most characters of an expression, so that nesting is bounded."""

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}

LIST_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "MAX": max,
    "MIN": min,
    "MED": lambda values: sorted(values)[len(values) // 2],
    "SM": lambda values: sum(values) % 10,
}
"""The operations of ListOps (Nangia and Bowman 2018); the median of an even number is the upper one."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of sums, differences, products and quotients of whole numbers, with parentheses, and
    the numbers in it, in order.

    Raises:
      ValueError: the text is no such expression, or divides by 0.
    """
    tokens = re.findall(r"[0-9]+|\S", text)[::-1] if len(text) <= LONGEST else []
    numbers: list[int] = []

    def chain(operators: str, part: Callable[[], Fraction]) -> Fraction:
        value = part()
        while tokens and tokens[-1] in operators:
            name, right = tokens.pop(), part()
            if name == "/" and not right:
                raise ValueError("a division by 0")
            value = OPERATIONS[name](value, right)
        return value

    def atom() -> Fraction:
        token = tokens.pop() if tokens else ""
        if token == "(":
            value = total()
            if not tokens or tokens.pop() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if not token.isascii() or not token.isdecimal():
            raise ValueError(f"{token!r}; expected a number")
        numbers.append(int(token))
        return Fraction(numbers[-1])

    def total() -> Fraction:
        return chain("+-", lambda: chain("*/", atom))

    value = total()
    if tokens:
        raise ValueError(f"{tokens[-1]!r} after the expression")
    return value, numbers


def evaluate_lists(text: str) -> int:
    """The value of an expression of ListOps, such as [MAX 2 9 [MIN 4 7 ] 0 ].

    Raises:
      ValueError: the text is no such expression.
    """
    stack: list[list] = [[]]
    for token in re.findall(r"\[[A-Z]+|[0-9]|\S", text):
        if token[1:] in LIST_OPERATIONS:
            stack.append([token[1:]])
        elif token == "]" and len(stack) > 1 and len(stack[-1]) > 1:
            operation, *values = stack.pop()
            stack[-1].append(LIST_OPERATIONS[operation](values))
        elif token.isascii() and token.isdecimal():
            stack[-1].append(int(token))
        else:
            raise ValueError(f"{token!r} in an expression of ListOps")
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError("no single expression of ListOps")
    return stack[0][0]
