import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer.layers.linear import Linear


def test_a_low_rank_path_begins_as_nothing_and_then_adds_its_product(rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 6)), jnp.float32)
    plain = Linear((3, 4), names=("embed", "heads", "head_dim"))
    tuned = plain.clone(lora_rank=2, lora_alpha=6.0)
    params = nn.meta.unbox(tuned.init(jax.random.key(0), x))["params"]
    base = {"params": {name: params[name] for name in ("kernel", "bias")}}
    np.testing.assert_array_equal(tuned.apply({"params": params}, x), plain.apply(base, x))
    down, up = rng.normal(size=(6, 2)), rng.normal(size=(2, 3, 4))
    params["lora_down"]["kernel"] = jnp.asarray(down, jnp.float32)
    params["lora_up"]["kernel"] = jnp.asarray(up, jnp.float32)
    kernel = np.asarray(params["kernel"], float) + 6 / 2 * np.einsum("dr,rhk->dhk", down, up)
    expected = np.einsum("btd,dhk->bthk", np.asarray(x, float), kernel) + np.asarray(params["bias"])
    np.testing.assert_allclose(tuned.apply({"params": params}, x), expected, atol=1e-4)


def test_the_first_step_moves_the_path_although_it_is_nothing(rng):
    """Its first matrix is drawn and its second zero, so that one of the two has a gradient."""
    x = jnp.asarray(rng.normal(size=(2, 6)), jnp.float32)
    tuned = Linear((4,), names=("embed", "mlp"), lora_rank=2)
    params = nn.meta.unbox(tuned.init(jax.random.key(0), x))["params"]
    gradient = jax.grad(lambda p: jnp.square(tuned.apply({"params": p}, x)).sum())(params)
    assert np.abs(gradient["lora_up"]["kernel"]).max() > 0 and not np.abs(params["lora_up"]["kernel"]).any()
