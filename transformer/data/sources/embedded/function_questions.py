"""Extractive questions about functions of the Python standard library."""

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer.data.sources.base import SPLITS, falls_in
from transformer.data.sources.embedded.stdlib_functions import StdlibFunctions, functions

LONGEST_CONTEXT = 1500
"""The most characters of a function that questions are asked about."""

LONGEST_ANSWER = 60
"""The most characters of an answer."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionQuestions(StdlibFunctions):
    """`function_questions`: {"question": "Which exception does f raise?", "context": a function without its
    docstring, "answers": {"text": [...], "answer_start": [...]} as in SQuAD, "answer": their text, "path": of
    its module}.

    A function has at most one question of each kind, and only questions whose answers are all the same text.
    Splits are by a hash of the function, so that duplicates stay in one split.
    """

    divided_by = "context"
    are_apart = True

    KIND, VERSION = "function_questions", 2
    FIELDS = ("question", "context", "answers", "answer", "path")

    @classmethod
    def read(cls, name: str, path: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The questions about all functions of a module."""
        for _, _, text in functions(path):
            if len(text) <= LONGEST_CONTEXT:
                split = next(split for split in SPLITS if falls_in(split, text.encode()))
                for question, answers in ask(text):
                    yield split, (question, text, answers, answers["text"][0], name)


def ask(text: str) -> list[tuple[str, dict[str, list]]]:
    """The questions about a function, in the format of `ast.unparse`, with their answers."""
    (function,) = ast.parse(text).body
    assert isinstance(function, Function)
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def span(node: ast.expr) -> tuple[int, int]:
        """The character span of a node, whose offsets in the syntax tree are in bytes."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        first, last = (starts[n - 1] + len(lines[n - 1].encode()[:byte].decode()) for n, byte in ends)
        return first, last

    by_kind: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for kind, question, node in _questions(function, lambda node: text[slice(*span(node))]):
        by_kind.setdefault(kind, {}).setdefault(question, []).append(span(node))
    rng = random.Random(text)
    chosen = []
    for by_question in by_kind.values():
        possible = []
        for question, spans in by_question.items():
            texts = [text[first:last] for first, last in spans]
            if len(set(texts)) == 1 and len(texts[0]) <= LONGEST_ANSWER and any(map(str.isalnum, texts[0])):
                answers: dict[str, list] = {"text": texts, "answer_start": [first for first, _ in spans]}
                possible.append((question, answers))
        if possible:
            chosen.append(rng.choice(possible))
    return chosen


def _questions(function: Function, text_of: Any) -> Iterator[tuple[str, str, ast.expr]]:
    """(kind, question, expression that answers it) for each question."""
    name, arguments = function.name, function.args
    places = [*arguments.posonlyargs, *arguments.args]
    defaults = zip(reversed(places), reversed(arguments.defaults), strict=False)
    for argument, default in (*defaults, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        if default:
            yield "default", f"What is the default of {argument.arg}?", default
    for node in _own(function):
        match node:
            case ast.Return(value=ast.expr() as value):
                yield "return", f"What does {name} return?", value
            case ast.Raise(exc=ast.Call(func=kind)) | ast.Raise(exc=ast.Name() as kind):
                yield "raise", f"Which exception does {name} raise?", kind
            case ast.If(test=test, body=[ast.Raise(exc=ast.Call(func=kind)), *_]):
                yield "when", f"When does {name} raise {text_of(kind)}?", test
            case ast.ExceptHandler(type=ast.expr() as kind):
                yield "catch", f"Which exception does {name} catch?", kind
            case ast.For(target=target, iter=through):
                yield "loop", f"What does the loop over {text_of(target)} go through?", through
            case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                yield "assign", f"What is {variable} set to?", value


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside a function, without those of nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from _own(child)
