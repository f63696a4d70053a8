"""Eight virtual CPU devices for every test, so that sharding is tested anywhere."""

import os

import jax
import numpy as np
import pytest

from tests import runs

jax.config.update("jax_num_cpu_devices", 8)
# Tests compile many programs and run each of them once: in haste, in a quarter of the time.
jax.config.update("jax_disable_most_optimizations", True)
HASTE = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{HASTE} {os.environ.get('XLA_FLAGS', '')}"


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
