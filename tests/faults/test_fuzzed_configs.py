"""Any change of any config is accepted and trains, or is refused with one line that is not a traceback."""

import random

import pytest

from tests.faults.fuzzed_configs import accepted, change, configs, one_step
from transformer.errors import UserError
from workdir.opening import check_config, read_config

pytestmark = pytest.mark.usefixtures("in_root")

TRIALS = 60
"""Changes of each config; there are 2,000 at least in all."""


@pytest.mark.thorough
@pytest.mark.parametrize("config", configs())
def test_any_change_is_accepted_or_refused_in_a_line(config, rng):
    random_ = random.Random(int(rng.integers(1 << 30)))
    plain = read_config(config)
    refused = 0
    for _ in range(TRIALS):
        values, what = change(plain, random_)
        try:
            check_config(values)
        except UserError as error:
            refused += 1
            assert str(error) and "\n" not in str(error), what
        except Exception as error:
            raise AssertionError(f"{config}: {what}") from error
    assert refused > TRIALS / 4


def test_there_are_enough_of_them():
    assert TRIALS * len(configs()) >= 2000


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
def test_what_is_accepted_trains_or_is_refused_in_a_line(tmp_path, rng, part):
    """A step of a config of a quarter of them; `python -m tests.faults.fuzzed_configs` does more of them."""
    drawn = random.Random(int(rng.integers(1 << 30)))
    values, what = accepted(drawn.choice(configs()[part::4]) + ":tiny", drawn)
    ended = one_step(values, tmp_path / "run")
    assert ended == "trained" or ended.startswith(("line: ", "large")), f"{what}: {ended}"
    assert not list(tmp_path.iterdir())
