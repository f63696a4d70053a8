"""Latent attention against its equations in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import Rope
from transformer.layers.attention.positions.rope import SCALINGS
from transformer.layers.mixers import LatentAttention


def equations(params, x, positions, *, frequency, temperature=1.0):
    """DeepSeek-AI 2024, equations 9 to 19, with causal attention: keys and values of each head, in full."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    turn = np.exp(1j * positions[:, :, None, None] * np.asarray(frequency, np.float64))

    def linear(name, form="btd,dhk->bthk"):
        return np.einsum(form, x, p[name]["kernel"]) + p[name]["bias"]

    def rotated(y):
        half = y.shape[-1] // 2
        z = (y[..., :half] + 1j * y[..., half:]) * turn
        return np.concatenate([z.real, z.imag], -1)

    latent = linear("latent", "btd,dc->btc")
    latent /= np.sqrt(np.mean(latent**2, -1, keepdims=True) + 1e-6)
    latent *= p["latent_norm"]["scale"]
    shared = rotated(linear("rotary_key", "btd,dk->btk")[:, :, None])
    k = np.einsum("btc,chk->bthk", latent, p["key_up"]["kernel"])
    k = np.concatenate([k, np.broadcast_to(shared, (*k.shape[:3], shared.shape[-1]))], -1)
    v = np.einsum("btc,chk->bthk", latent, p["value_up"]["kernel"])
    q = np.concatenate([linear("query"), rotated(linear("rotary_query"))], -1)
    scores = temperature * np.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[-1])
    scores[..., np.triu(np.ones(scores.shape[2:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("bhts,bshk->bthk", weights / weights.sum(-1, keepdims=True), v)
    return np.einsum("bthk,hkd->btd", out, p["output"]["kernel"]) + p["output"]["bias"]


def make(rng, position=None, t=9, **fields):
    """A module, random parameters and inputs: x in float64, and those that the module takes beside it."""
    fields = {"num_heads": 4, "head_dim": 16} | fields
    module = LatentAttention(position=position or Rope(), **fields)
    x, positions = rng.normal(size=(2, t, 32)), np.sort(rng.integers(0, 500, (2, t)))
    inputs = {"mask": Mask(causal=True), "positions_bt": jnp.asarray(positions)}
    return module, random_params(rng, module, jnp.asarray(x), scale=32**-0.5, **inputs), x, inputs


@pytest.mark.parametrize("latent_dim", [0, 8])
def test_the_sequence_form(rng, latent_dim):
    module, params, x, inputs = make(rng, latent_dim=latent_dim)
    found, _ = module.apply({"params": params}, jnp.asarray(x), **inputs)
    expected = equations(params, x, inputs["positions_bt"], frequency=10000.0 ** (-np.arange(4) / 4))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_temperature_of_yarn_is_that_of_the_whole_score(rng):
    """Of its part by content too. Source: Peng et al. 2023, section 3.4; so in DeepSeek-V2 and V3."""
    module, params, x, inputs = make(rng, Rope(scaling="yarn", scaling_factor=16.0, max_length=1024))
    found, _ = module.apply({"params": params}, jnp.asarray(x), **inputs)
    frequency, _ = SCALINGS["yarn"](4, 10000.0, 16.0, 64)
    temperature = (0.1 * math.log(16) + 1) ** 2
    places = inputs["positions_bt"]
    expected = equations(params, x, places, frequency=frequency, temperature=temperature)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def both_forms(monkeypatch, run):
    """What `run` gives over the keys and values of heads, and over latents."""
    found = []
    for absorbs in (False, True):
        monkeypatch.setattr(LatentAttention, "absorbs", lambda *_, absorbs=absorbs: absorbs)
        found.append(run())
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("memory", [0, 5])
def test_both_forms_are_the_same_function(rng, monkeypatch, memory):
    """Outputs and gradients, also over an earlier segment's cache, which has only latents and rotary keys."""
    module, params, x, inputs = make(rng)
    x, cotangent = jnp.asarray(x, jnp.float32), jnp.asarray(rng.normal(size=x.shape), jnp.float32)

    def run():
        def output(params, x):
            given = inputs
            if memory:
                cache = module.empty_cache(2, 9)
                first = inputs | {"positions_bt": inputs["positions_bt"][:, :memory], "cache": cache}
                first |= {"key_positions_bs": inputs["positions_bt"]}
                _, cache = module.apply({"params": params}, x[:, :memory], **first)
                places = jnp.broadcast_to(jnp.arange(memory, 9), (2, 9 - memory))
                mask = Mask(query_indices_bt=places, causal=True)
                given = {"mask": mask, "positions_bt": inputs["positions_bt"][:, memory:]}
                given |= {"cache": cache, "start": memory, "key_positions_bs": inputs["positions_bt"]}
            return module.apply({"params": params}, x[:, memory:], **given)[0]

        out, back = jax.vjp(output, params, x)
        return out, back(cotangent[:, memory:])

    over_heads, over_latents = both_forms(monkeypatch, run)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), over_heads, over_latents)


def test_few_queries_are_absorbed_and_many_are_not():
    """At the sizes of DeepSeek-V2: training and prefill attend to heads, decoding to latents."""
    module = LatentAttention(position=Rope(), num_heads=128, head_dim=128, latent_dim=512)
    for t in (64, 4096):
        assert not module.absorbs(t, t)
    for t, s in ((1, 64), (1, 4096), (4, 4096), (64, 4096)):
        assert module.absorbs(t, s)


@pytest.mark.thorough
def test_a_training_step_has_far_fewer_products_over_heads(rng, monkeypatch):
    """At the proportions of DeepSeek-V2, an eighth of its size: c = 4 k, d = 40 k, and 64 k tokens.

    Scores and weighted sums alone have 3.4 times the products over latents: 2 c + k / 2 to 2.5 k.
    """
    module = LatentAttention(position=Rope(), num_heads=16, head_dim=16, latent_dim=64, kernel="reference")
    x = jnp.zeros((1, 1024, 640))
    inputs = {"mask": Mask(causal=True), "positions_bt": jnp.arange(1024)[None]}
    params = random_params(rng, module, x, **inputs)

    def flops():
        def loss(params, x):
            return jnp.sum(module.apply({"params": params}, x, **inputs)[0])

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, x).compile()
        return compiled.cost_analysis()["flops"]

    over_heads, over_latents = both_forms(monkeypatch, flops)
    assert over_latents > 2 * over_heads
