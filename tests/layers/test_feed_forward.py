import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from transformer.layers.feed_forward import FEED_FORWARDS, FeedForward

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
    "swiglu": lambda x: x * special.expit(x),
    "geglu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
}


@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_against_float64(kind, rng):
    x = rng.normal(size=(2, 3, 8))
    module = FeedForward(16, kind)
    params = jax.tree.map(
        lambda p: rng.normal(size=p.shape).astype(np.float32),
        jax.tree.map(jnp.asarray, module.init(jax.random.key(0), jnp.asarray(x, jnp.float32))["params"]),
    )
    params = {
        name: {key: np.asarray(leaf.unbox()) for key, leaf in group.items()} for name, group in params.items()
    }

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ params[name]["kernel"].astype(np.float64) + params[name]["bias"]

    hidden = ACTIVATIONS[kind](linear("gate" if kind.endswith("glu") and kind != "relu" else "up", x))
    if kind in ("swiglu", "geglu"):
        hidden = hidden * linear("up", x)
    y = module.apply({"params": params}, jnp.asarray(x, jnp.float32))
    # The tanh form of GELU, the usual one, differs from the exact one by up to 5e-4.
    np.testing.assert_allclose(y, linear("down", hidden), atol=2e-2 if kind in ("gelu", "geglu") else 1e-4)
