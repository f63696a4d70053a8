"""Seeds of the random inputs of tests: by default the test's name.

    pytest                  a test always draws the same inputs, run alone or with others
    pytest --seed=random    other inputs; the last line says how to repeat them
    pytest --seed=123       the inputs of a run that printed 123

This holds for the fixture `rng`, for `random` and `np.random` (in a test and in each fixture), and for
hypothesis.
"""

import hashlib
import random
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)  # seeded by the test's own code
settings.register_profile("drawn", derandomize=False, deadline=None, database=None, print_blob=True)


def seed_option(text: str) -> str:
    """A number, `random` for a new one, or `name` for none."""
    if text == "random":
        return str(secrets.randbelow(10**9))
    if text != "name" and not text.isdecimal():
        raise ValueError(text)
    return text


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=seed_option,
        default="name",
        help="seed of random inputs besides the test's name: a number, or 'random' for a new one",
    )


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    option.seed = getattr(config, "workerinput", {}).get("seed", option.seed)
    settings.load_profile("same" if option.seed == "name" else "drawn")
    if option.seed != "name":
        option.hypothesis_seed = option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives the seed to the workers of xdist, which would each draw their own."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if config.option.seed == "name" else f"random inputs: --seed={config.option.seed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.seed != "name":
        terminalreporter.write_line(f"The same inputs again: --seed={config.option.seed}")


def seed_of(node: Any, *more: str) -> int:
    """A 32-bit seed for a test, a module or another scope of a fixture."""
    text = "\0".join((node.config.option.seed, node.nodeid, *more))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A random generator, seeded by the test's name and parameters."""
    return np.random.default_rng(seed_of(request.node))


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[None]:
    """Seeds each fixture, so that the inputs of a module's fixture do not depend on the first test."""
    before = random.getstate(), np.random.get_state()
    _seed_globals(seed_of(request.node, fixturedef.argname, str(getattr(request, "param_index", 0))))
    try:
        return (yield)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _seed_globals(seed_of(item))
