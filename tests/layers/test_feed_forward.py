import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from tests.parameters import random_params
from transformer.layers.feed_forward import ACTIVATIONS as ACTIVATIONS_OF_ARRAYS
from transformer.layers.feed_forward import FEED_FORWARDS


def gelu(x: np.ndarray) -> np.ndarray:
    """The usual approximation (Hendrycks and Gimpel 2016, section 2)."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu": gelu,
    "silu": lambda x: x * special.expit(x),
    "swiglu": lambda x: x * special.expit(x),
    "geglu": gelu,
    "gelu_exact": lambda x: x * special.ndtr(x),
    "geglu_exact": lambda x: x * special.ndtr(x),
    "swiglu_clamped": lambda x: np.minimum(x, 7) * special.expit(1.702 * np.minimum(x, 7)),
}


def of_up(kind: str, x: np.ndarray) -> np.ndarray:
    """What the gate of a feed-forward is multiplied with."""
    return np.clip(x, -7, 7) + 1 if kind == "swiglu_clamped" else x


def test_every_feed_forward_is_tested():
    assert ACTIVATIONS.keys() == {name for name, make in FEED_FORWARDS.items() if make}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_against_float64(kind, rng):
    x = rng.normal(size=(2, 3, 8)) * (3 if kind == "swiglu_clamped" else 1)  # beyond its limits
    module = FEED_FORWARDS[kind](d_ff=16)
    params = random_params(rng, module, jnp.asarray(x, jnp.float32), scale=1.0)

    exact = jax.tree.map(np.float64, params)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ exact[name]["kernel"] + exact[name]["bias"]

    gated = "glu" in kind
    up = of_up(kind, linear("up", x)) if gated else 1
    hidden = ACTIVATIONS[kind](linear("gate" if gated else "up", x)) * up
    y = module.apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y, linear("down", hidden), atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU computes GELU in the type of the product")
@pytest.mark.parametrize("kind", ["gelu", "gelu_exact"])
def test_gelu_of_bfloat16_is_rounded_once_on_a_cpu(kind, rng):
    x = jnp.asarray(rng.normal(scale=2.0, size=4000), jnp.bfloat16)
    y, backward = jax.vjp(ACTIVATIONS_OF_ARRAYS[kind], x)
    rounded = jnp.asarray(ACTIVATIONS[kind](np.asarray(x, np.float64)), jnp.bfloat16)
    steps = np.abs(np.asarray(y).view(np.int16).astype(int) - np.asarray(rounded).view(np.int16))
    assert y.dtype == jnp.bfloat16 and np.mean(steps > 0) < 0.03  # float32's own error
    assert backward(jnp.ones_like(x))[0].dtype == jnp.bfloat16
