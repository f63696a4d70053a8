"""Eight virtual CPU devices for every test, so that sharding is tested anywhere."""

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Tests compile many programs and run each of them once.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh random inputs; the seed is printed by pytest's own report when a test fails."""
    seed = np.random.SeedSequence().entropy
    print(f"rng seed: {seed}")
    return np.random.default_rng(seed)
