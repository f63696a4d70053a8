"""The lists of tests in `tests/conftest.py`, which CI runs again."""

import pytest

from tests import runs
from tests.conftest import CORE, OPTIMIZED


@pytest.mark.parametrize("name", sorted({*CORE, *OPTIMIZED}))
def test_a_test_that_a_list_names_exists(name):
    path, _, function = name.partition("::")
    code = (runs.ROOT / path).read_text()
    assert f"\ndef {function.partition('[')[0]}" in code
