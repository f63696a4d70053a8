"""That any change of any config is accepted, or refused with one line that is no traceback."""

import copy
import random
import string

import pytest

from commands.opening import check_config, read_config
from tests import runs
from transformer.errors import UserError

pytestmark = pytest.mark.usefixtures("in_root")

ODD = (
    *(0, 1, -1, 2**31, 2**70, -(2**70), 3.7, 1e30, 1e-400, 1e400, -1e400, float("nan")),
    *(None, True, False, "", "x", "None", "-1", "../..", "\x00", "é" * 10, b"x", (1, 2)),
    *([], {}, ["x"], {"a": 1}),
)
"""Values that few keys take."""

TRIALS = 60
"""Changes of each config; there are 2,000 at least in all."""


def configs() -> list[str]:
    """All config files, papers and studies among them."""
    found = sorted(path for path in (runs.ROOT / "configs").rglob("*.py") if "get_config" in path.read_text())
    return [str(path.relative_to(runs.ROOT)) for path in found]


def change(values: dict, rng: random.Random) -> tuple[dict, str]:
    """A copy of the values in which one key is dropped, misspelt, nested, or of another value; and what."""
    values = copy.deepcopy(values)
    names, node = [rng.choice(sorted(values))], values
    while isinstance(node[names[-1]], dict) and node[names[-1]] and rng.random() < 0.9:
        node = node[names[-1]]
        names.append(rng.choice(sorted(node)))
    key, how = names[-1], rng.choice(("drop", "misspell", "nest", *["change"] * 5))
    if how == "drop":
        del node[key]
    elif how == "misspell":
        node[key + rng.choice(string.ascii_letters)] = node.pop(key)
    elif how == "nest":
        node[key] = {key: node[key]}
    else:
        node[key] = rng.choice(ODD)
    return values, f"{how} {'.'.join(names)}: {node.get(key)!r}"


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
