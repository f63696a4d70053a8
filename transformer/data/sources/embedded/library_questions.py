"""Conversations about the Python standard library: questions about functions, answered by docstrings."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer.data.sources.base import SPLITS
from transformer.data.sources.embedded.stdlib import in_split
from transformer.data.sources.embedded.stdlib_functions import StdlibFunctions, functions

LEAST, MOST = 20, 400
"""The least number of characters of a short answer, and the most of a long one."""


class LibraryQuestions(StdlibFunctions):
    """`library_questions`: {"messages": a question about a function or method and the long answer as JSON
    messages, "prompt": the question, "chosen": the short answer, "rejected": the long answer, "path": of the
    module}, split by a hash of the module's path.

    The short answer is the first sentence of the docstring; the long one continues with the next sentences of
    its first two paragraphs. Functions whose docstrings have only one sentence are left out.
    """

    divided_by = "path"
    are_apart = True

    KIND, VERSION = "library_questions", 1
    FIELDS = ("messages", "prompt", "chosen", "rejected", "path")

    @classmethod
    def read(cls, name: str, path: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The questions about the functions of a module."""
        split = next(split for split in SPLITS if in_split(name, split))
        for node, docstring, _ in functions(path):
            short, long = answers(docstring)
            if LEAST <= len(short) < len(long) <= MOST:
                question = f"What does {node.name}({', '.join(_arguments(node))}) of {_module(name)} do?"
                talk = [{"role": "user", "content": question}, {"role": "assistant", "content": long}]
                yield split, (json.dumps(talk), question, short, long, name)


def answers(docstring: str) -> tuple[str, str]:
    """The first sentence of a docstring, and all whole sentences of its first two paragraphs, up to `MOST`
    characters."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", docstring.strip())[:2]]
    sentences = [text for part in paragraphs for text in re.split(r"(?<=[.!?]) (?=[A-Z])", part)]
    whole = [part for part in sentences if part.endswith((".", "!", "?")) and part[:1].isalpha()]
    long = ""
    for sentence in whole:
        if len(long) + len(sentence) >= MOST:
            break
        long = f"{long} {sentence}".strip()
    return (whole or [""])[0], long


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of the arguments that are given by place, without that of the object."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _module(name: str) -> str:
    """json/decoder.py -> json.decoder."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
