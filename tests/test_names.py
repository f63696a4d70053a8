"""Variables say what they hold: the field's noun, not a word that fits any value."""

import ast
import subprocess
from collections.abc import Iterator
from types import CodeType

import pytest

from tests import runs

WORDS = (
    "found each given said both which what kept held made wanted thing things asked told named meant taken"
)
VAGUE = frozenset(f"{WORDS} got it one ones other others".split())
"""Names of variables, parameters and attributes that say nothing about their value."""

ALLOWED = {
    ("transformer/evaluation/classifier_scores.py", "one"),  # the number
    ("transformer/evaluation/terms_by_row.py", "one"),
    ("transformer/models/transforms/value_embeddings.py", "ones"),  # the initialiser of that name
    ("transformer/planning/memory.py", "other"),  # than parameters and optimizer: a column of a table
    ("transformer/training/checkpoints/initialize.py", "taken"),  # beside `new` and `left`, in a table
}
"""(file, name) that are exact where they stand."""

FOLDERS = ("transformer", "experiments", "workdir", "commands", "configs", "examples", "launch.py")


def words(code: CodeType) -> set[str]:
    """All names of compiled code, and its texts, as which names of fields without a default are stored."""
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    inner = [words(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return texts.union(code.co_names, code.co_varnames, code.co_cellvars, *inner)


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of all that code gives a value, but for the `other` operand of an operator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
            node.args.args = [argument for argument in node.args.args if argument.arg != "other"]
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.lineno, node.name


def vague(code: str) -> list[tuple[int, str]]:
    """Line and name of vague names; only code that has one of these words is parsed, which is slower."""
    has_one = VAGUE & words(compile(code, "", "exec", optimize=2))
    return [(line, name) for line, name in bound(ast.parse(code)) if name in VAGUE] if has_one else []


def test_variables_say_what_they_hold():
    listing = subprocess.run(["git", "ls-files", *FOLDERS], cwd=runs.ROOT, capture_output=True, check=True)
    files = [file for file in listing.stdout.decode().split() if file.endswith(".py")]
    lines = {(f, name): n for f in files for n, name in vague((runs.ROOT / f).read_text(encoding="utf-8"))}
    assert [f"{file}:{lines[file, name]}: {name}" for file, name in sorted({*lines} - ALLOWED)] == []
    assert {*lines} >= ALLOWED, "an exception for a name that is not there"


FORMS = ["{} = 1", "class A:\n    {}: int", "[{} for {} in []]", "lambda {}: 0", "a.{} = 1", "b = ({} := 1)"]


@pytest.mark.parametrize("code", FORMS)
def test_a_vague_name_is_seen(code):
    assert {name for _, name in vague(code.format("found", "found"))} == {"found"}
    assert vague(code.format("paths", "paths")) == []
