import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.remat import HOST, REMAT
from transformer.models.decoder_config import StackConfig

CONFIG = StackConfig(
    norm="layer", d_model=16, num_layers=2, num_heads=2, d_ff=32, kernel="reference", dropout=0.2
)
B, T, H, N = 3, 24, CONFIG.num_heads, CONFIG.num_layers


def loss_of(rng, **changes):
    """A function of (params, x_btd) that goes through a stack, and arguments for it."""
    stack = dataclasses.replace(CONFIG, **changes).stack()
    inputs = {"mask": Mask(causal=True), "positions_bt": jnp.arange(T)[None]}
    x_btd = jnp.asarray(rng.normal(size=(B, T, CONFIG.d_model)), jnp.float32)

    class Owner(nn.Module):
        @nn.compact
        def __call__(self, params_n, x_btd):
            return stack.run(self, "blocks", params_n, x_btd, train=True, **inputs)[0]

    def loss(params_n, x_btd):
        rngs = {"dropout": jax.random.key(1)}
        return jnp.sum(jnp.sin(Owner().apply({}, params_n, x_btd, rngs=rngs)))

    return loss, nn.meta.unbox(jax.jit(stack.init)(jax.random.key(0), x_btd)), x_btd


def kept(rng, remat):
    """The arrays that the backward pass holds on to."""
    loss, params_n, x_btd = loss_of(rng, remat=remat)
    _, backward = jax.vjp(loss, params_n, x_btd)
    return jax.tree.leaves(backward)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("remat", "scan"), [(remat, remat in ("attention", "offload")) for remat in REMAT if remat != "none"]
)
def test_every_policy_has_the_gradients_of_none(rng, remat, scan):
    loss, params_n, x_btd = loss_of(rng)
    other, *_ = loss_of(rng, remat=remat, scan_layers=scan)
    expected = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params_n, x_btd)
    found = jax.jit(jax.value_and_grad(other, argnums=(0, 1)))(params_n, x_btd)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


@pytest.mark.thorough
def test_each_policy_keeps_what_it_says(rng):
    held = {remat: kept(rng, remat) for remat in REMAT}
    sizes = {remat: sum(leaf.size for leaf in leaves) for remat, leaves in held.items()}
    outputs = N * B * T * CONFIG.d_model  # of attention's kernels
    scores = N * B * H * T * T
    assert sizes["attention"] - sizes["full"] == outputs
    assert sizes["dots"] - sizes["dots_no_batch"] == scores + outputs  # Q K^T and weights V
    assert sizes["attention"] < sizes["dots_no_batch"] == sizes["offload"] < sizes["dots"] < sizes["none"]
    # q, k, v, the output projection and the first product of the feed-forward, of each layer; the second
    # product is only added, and no gradient reads it.
    products = N * B * T * (4 * CONFIG.d_model + CONFIG.d_ff)
    away = {
        remat: sum(leaf.size for leaf in leaves if leaf.sharding.memory_kind == HOST)
        for remat, leaves in held.items()
    }
    assert away == dict.fromkeys(REMAT, 0) | {"offload": products}


@pytest.mark.thorough
def test_a_kernel_with_gradients_of_its_own_is_not_run_again(rng):
    """Their residuals are kept by name: the outputs, and a number for each query and head."""
    sizes, loops = {}, {}
    for remat in ("full", "attention"):
        loss, params_n, x_btd = loss_of(rng, remat=remat, kernel="blockwise")
        _, backward = jax.vjp(loss, params_n, x_btd)
        leaves = jax.tree.leaves(backward)
        sizes[remat] = sum(leaf.size for leaf in leaves if leaf.dtype == jnp.float32)
        loops[remat] = str(jax.make_jaxpr(backward)(1.0)).count("scan[")
    assert sizes["attention"] - sizes["full"] == N * B * T * (CONFIG.d_model + H)
    assert loops["full"] > loops["attention"]


@pytest.mark.thorough
def test_the_compiled_step_needs_less(rng):
    """Of a scan, as compilers may undo what is done twice in one piece of code (the one for CPUs does)."""

    def temporary(remat):
        loss, params_n, x_btd = loss_of(rng, remat=remat, scan_layers=True)
        return jax.jit(jax.grad(loss)).lower(params_n, x_btd).compile().memory_analysis().temp_size_in_bytes

    none, dots, attention, full = (temporary(remat) for remat in ("none", "dots", "attention", "full"))
    assert full < attention < dots < none
    assert none - dots > 4 * math.prod((N, B, H, T, T))  # at least the weights after the softmax


def test_offloading_asks_the_mesh_what_it_runs_on(rng, monkeypatch):
    """Its devices may be of another machine than this one."""
    loss, params_n, x_btd = loss_of(rng, remat="offload")
    described = jax.sharding.AbstractDevice("Abacus 2", None, "abacus")
    mesh = jax.sharding.AbstractMesh((8,), ("data",), abstract_device=described)
    with pytest.raises(UserError, match="abacus has no pinned_host"), jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(loss, params_n, x_btd)
    monkeypatch.setattr(jax, "devices", lambda: [described])
    described = jax.sharding.AbstractDevice("TPU v5", None, "tpu")
    mesh = jax.sharding.AbstractMesh((8,), ("data",), abstract_device=described)
    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(loss, params_n, x_btd)


def test_offloading_to_no_memory_is_refused_before_anything_is_compiled(rng, monkeypatch):
    loss, params_n, x_btd = loss_of(rng, remat="offload")
    device = types.SimpleNamespace(
        platform="abacus", addressable_memories=lambda: [types.SimpleNamespace(kind="device")]
    )
    monkeypatch.setattr(jax, "devices", lambda: [device])
    message = "remat: 'offload', but abacus has no pinned_host; expected one of 'none', 'full', 'dots', "
    with pytest.raises(UserError, match=message):
        jax.eval_shape(loss, params_n, x_btd)


def test_a_config_names_the_policies_that_there_are():
    with pytest.raises(UserError, match=r"^remat: 'half'; expected one of 'none', 'full', 'dots', "):
        dataclasses.replace(CONFIG, remat="half")
