"""The names of test files, and the lists of tests in `tests/conftest.py`, which CI runs again."""

import collections

import pytest

from tests import runs
from tests.conftest import CORE, OPTIMIZED


@pytest.mark.parametrize("name", sorted({*CORE, *OPTIMIZED}))
def test_a_test_that_a_list_names_exists(name):
    path, _, function = name.partition("::")
    code = (runs.ROOT / path).read_text()
    assert f"\ndef {function.partition('[')[0]}" in code


def test_no_two_test_files_have_the_same_name():
    """The folders of tests are no packages, so pytest would import one of the two for both."""
    names = collections.Counter(path.name for path in (runs.ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
