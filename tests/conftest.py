"""Eight virtual CPU devices for every test, so that sharding is tested anywhere."""

import jax
import numpy as np
import pytest

from tests import runs

jax.config.update("jax_num_cpu_devices", 8)
# Tests compile many programs and run each of them once.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh random inputs; the seed is printed by pytest's own report when a test fails."""
    seed = np.random.SeedSequence().entropy
    print(f"rng seed: {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def in_root(tmp_path_factory):
    """In the repository's folder, for the tests of whole programs (see `tests.runs`)."""
    with runs.in_root(tmp_path_factory):
        yield
