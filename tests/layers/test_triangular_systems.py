"""The triangular systems of the delta rule, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.mixers.chunked_state import _solve

KINDS = {
    "random": lambda rng, t: rng.normal(size=(t, t)) / np.sqrt(t),
    "one key again and again": lambda rng, t: np.ones((t, t)),
    "opposite keys": lambda rng, t: (-1.0) ** np.add.outer(np.arange(t), np.arange(t)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [1, 2, 5, 16, 63, 64])
def test_a_system_is_solved_whatever_its_keys_are(rng, t, kind):
    """The inverse as a power series would lose all digits where keys repeat: its terms are 10^18."""
    matrix_ts, right_tk = KINDS[kind](rng, t), rng.normal(size=(t, 8))
    whole_ts = np.eye(t) + np.tril(matrix_ts, -1)
    solution_tk = _solve(jnp.asarray(matrix_ts, jnp.float32), jnp.asarray(right_tk, jnp.float32))
    expected_tk = np.linalg.solve(whole_ts, right_tk)
    np.testing.assert_allclose(solution_tk, expected_tk, rtol=0, atol=2e-5 * np.abs(expected_tk).max())


def test_no_library_is_called():
    """On CPUs XLA calls LAPACK for a triangular system, and several in a loop have waited for one another."""
    x = jnp.ones((4, 16, 16))
    program = jax.jit(jax.grad(lambda a, b: jnp.sum(jax.vmap(_solve)(a, b)))).lower(x, x).as_text()
    assert "dot_general" in program and "triangular" not in program and "custom_call" not in program
