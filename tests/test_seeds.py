"""The mechanism of `tests.seeds`, by whole runs of pytest over a few tests that write down what they draw."""

import os
import re
import subprocess
import sys

import pytest

from tests import runs, seeds

PROBE = """
    import json, os, random
    import numpy as np
    import pytest
    from hypothesis import given, strategies as st

    def note(**drawn):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split()[0]
        with open(os.environ["NOTES"], "a") as file:
            file.write(json.dumps({"test": name} | drawn, sort_keys=True) + "\\n")

    @pytest.fixture(scope="module")
    def shared():
        return random.random(), np.random.random()

    @pytest.mark.parametrize("case", "abcdef")
    def test_drawn(rng, shared, case):
        note(shared=shared, rng=float(rng.random()), python=random.random(), numpy=np.random.random())

    @given(st.integers(0, 10**9))
    def test_hypothesis(number):
        note(number=number)
"""


@pytest.fixture
def drawn(tmp_path):
    """Runs the probe with these options: what its tests noted, sorted, and what pytest printed."""
    (tmp_path / "test_probe.py").write_text("\n".join(line[4:] for line in PROBE.splitlines()))

    def run(*options):
        notes = tmp_path / "notes"
        notes.write_text("")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.seeds", "-p", "no:cacheprovider"]
        environment = {"NOTES": str(notes), "PYTHONPATH": str(runs.ROOT)}
        done = subprocess.run(
            [*command, *options, "test_probe.py"],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return sorted(notes.read_text().splitlines()), done.stdout

    return run


@pytest.mark.thorough
def test_inputs_follow_from_the_name_of_a_test_and_random_ones_can_be_repeated(drawn):
    usual, said = drawn()
    rngs = re.findall(r'"rng": ([\d.e-]+)', "".join(usual))
    assert len(rngs) == len(set(rngs)) == 6, "every test has its own inputs"
    assert len(set(re.findall(r'"shared": \[[^]]*\]', "".join(usual)))) == 1
    assert len([line for line in usual if '"number"' in line]) == 100 and "--seed" not in said
    assert drawn("-n2", "-k", "f or hypothesis")[0] == [line for line in usual if re.search(r"f\]|hyp", line)]

    other, said = drawn("--seed=random", "-n2")
    assert other != usual and not {line for line in other if "drawn" in line} & set(usual)
    assert [line for line in other if "hypo" in line] != [line for line in usual if "hypo" in line]
    (option,) = set(re.findall(r"--seed=\d+", said))
    assert drawn(option)[0] == other


def test_a_seed_is_a_number_or_a_new_one():
    assert seeds.seed_option("12") == "12" and seeds.seed_option("name") == "name"
    assert len({seeds.seed_option("random") for _ in range(5)}) > 1
    with pytest.raises(ValueError):
        seeds.seed_option("rnd")
