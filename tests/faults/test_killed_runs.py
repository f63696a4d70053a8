import random

import pytest

from tests.faults import killed_runs


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("config", killed_runs.CONFIGS)
def test_a_run_that_is_killed_at_random_ends_as_an_undisturbed_one(tmp_path, rng, config):
    seconds = killed_runs.finish(config, tmp_path / "whole")
    expected = killed_runs.result(tmp_path / "whole")
    assert len(expected["checksums"]) > 10
    assert [line["step"] for line in expected["metrics"]] == sorted(
        {line["step"] for line in expected["metrics"]}
    )
    killed_runs.kill(config, tmp_path / "killed", seconds, 3, random.Random(int(rng.integers(1 << 30))))
    assert killed_runs.result(tmp_path / "killed") == expected
