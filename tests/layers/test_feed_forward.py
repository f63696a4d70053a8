import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from tests.parameters import random_params
from transformer.layers.feed_forward import FEED_FORWARDS

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
    "swiglu": lambda x: x * special.expit(x),
    "geglu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
}


def test_every_feed_forward_is_tested():
    assert ACTIVATIONS.keys() == {name for name, make in FEED_FORWARDS.items() if make}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_against_float64(kind, rng):
    x = rng.normal(size=(2, 3, 8))
    module = FEED_FORWARDS[kind](d_ff=16)
    params = random_params(rng, module, jnp.asarray(x, jnp.float32), scale=1.0)

    exact = jax.tree.map(np.float64, params)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ exact[name]["kernel"] + exact[name]["bias"]

    gated = kind in ("swiglu", "geglu")
    hidden = ACTIVATIONS[kind](linear("gate" if gated else "up", x)) * (linear("up", x) if gated else 1)
    y = module.apply({"params": params}, jnp.asarray(x, jnp.float32))
    # The tanh form of GELU, the usual one, differs from the exact one by up to 5e-4.
    np.testing.assert_allclose(y, linear("down", hidden), atol=2e-2 if kind in ("gelu", "geglu") else 1e-4)
