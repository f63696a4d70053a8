"""The list of `python -m tests.mutations` still fits the code, which it changes."""

import ast
import collections

import pytest

from tests.mutations.table import MUTATIONS, ROOT


def test_names_are_unique():
    assert [name for name, n in collections.Counter(m.name for m in MUTATIONS).items() if n > 1] == []


@pytest.mark.parametrize("file", sorted({mutation.file for mutation in MUTATIONS}))
def test_every_mutation_is_possible(file):
    """Its text is in the file once, what it makes of the file is another program, and its tests exist."""
    code = (ROOT / file).read_text()
    for mutation in (each for each in MUTATIONS if each.file == file):
        assert code.count(mutation.find) == 1, mutation.name
        mutated = ast.parse(code.replace(mutation.find, mutation.replacement))
        assert ast.dump(mutated) != ast.dump(ast.parse(code)), mutation.name
        for path, _, function in (test.partition("::") for test in mutation.tests):
            assert f"\ndef {function}" + "(" * bool(function) in (ROOT / path).read_text(), mutation.name
