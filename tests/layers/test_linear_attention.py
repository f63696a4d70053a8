import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.decoding import test_incremental as incremental
from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.attention.positions.rope import Rope
from transformer.layers.mixers import LinearAttention, linear_attention
from transformer.models.decoder import Decoder, DecoderConfig

CONFIG = DecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24, max_length=32, mixer="linear")


def make(rng, **changes):
    model = Decoder(dataclasses.replace(CONFIG, **changes), 23)
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32))


def expected(params, x_btd, allowed_bts, rotate=lambda x: x):
    """The sum over heads and tokens, one by one, in float64."""
    exact = {name: np.float64(value["kernel"]) for name, value in params.items()}
    q, k, v = (np.einsum("btd,dhk->bhtk", x_btd, exact[name]) for name in ("query", "key", "value"))
    q, k = rotate(q), rotate(k)
    out = np.zeros_like(v)
    for b, h, t in np.ndindex(q.shape[:3]):
        seen = np.flatnonzero(allowed_bts[b, t])
        for s in seen:
            out[b, h, t] += q[b, h, t] @ k[b, h, s] / np.sqrt(q.shape[-1]) * v[b, h, s] / len(seen)
    return np.einsum("bhtk,hkd->btd", out, exact["output"])


@pytest.mark.parametrize("chunk", [64, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_against_float64(rng, monkeypatch, causal, chunk):
    monkeypatch.setattr(linear_attention, "CHUNK", chunk)
    mixer = LinearAttention(num_heads=2, head_dim=4, position=POSITIONS["none"](parent=None), use_bias=False)
    x_btd = rng.normal(size=(2, 11, 8))
    segments_bt = np.repeat([[1, 2, 3], [1, 1, 2]], [4, 5, 2], axis=1)
    positions_bt = np.array([[*range(4), *range(5), *range(2)], [*range(9), *range(2)]])
    mask = Mask.self_attention(jnp.asarray(segments_bt), None, causal=causal)
    inputs = {"mask": mask, "positions_bt": jnp.asarray(positions_bt)}
    params = random_params(rng, mixer, jnp.asarray(x_btd, jnp.float32), **inputs)
    out, cache = mixer.apply({"params": params}, jnp.asarray(x_btd, jnp.float32), **inputs)
    allowed_bts = segments_bt[:, :, None] == segments_bt[:, None]
    allowed_bts = allowed_bts & np.tri(11, dtype=bool) if causal else allowed_bts
    assert cache is None
    np.testing.assert_allclose(out, expected(params, x_btd, allowed_bts), atol=1e-5)


def test_rotary_positions_rotate_queries_and_keys(rng):
    mixer = LinearAttention(num_heads=2, head_dim=4, position=Rope(parent=None), use_bias=False)
    x_btd, positions_bt = rng.normal(size=(1, 7, 8)), jnp.arange(7)[None]
    inputs = {"mask": Mask(causal=True), "positions_bt": positions_bt}
    params = random_params(rng, mixer, jnp.asarray(x_btd, jnp.float32), **inputs)
    out, _ = mixer.apply({"params": params}, jnp.asarray(x_btd, jnp.float32), **inputs)

    def rotate(x_bhtk):
        angle_tk = np.arange(7)[:, None] * 10000.0 ** -np.array([0, 0.5])
        turned = (x_bhtk[..., :2] + 1j * x_bhtk[..., 2:]) * np.exp(1j * angle_tk)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    np.testing.assert_allclose(out, expected(params, x_btd, np.tri(7)[None], rotate), atol=1e-5)


@pytest.mark.parametrize("changes", [
    {"position": "rope"},
    pytest.param({"position": "learned", "scan_layers": True, "use_bias": True}, marks=pytest.mark.thorough),
])  # fmt: skip
def test_decoding_is_the_sequence_form(rng, changes):
    incremental.check_steps(rng, *make(rng, **changes))


@pytest.mark.thorough
def test_packed_documents_equal_separate_ones(rng, monkeypatch):
    monkeypatch.setattr(linear_attention, "CHUNK", 4)
    model, params = make(rng)
    tokens = rng.integers(0, 23, (1, 11))
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3]])
    positions = np.array([[0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1]])
    both = model.apply({"params": params}, tokens, segments_bt=segments, positions_bt=positions)
    for start, end in (0, 3), (3, 9), (9, 11):
        alone = model.apply({"params": params}, tokens[:, start:end])
        np.testing.assert_allclose(both[:, start:end], alone, atol=1e-4)


@pytest.mark.thorough
def test_gradients_do_not_depend_on_chunks(rng, monkeypatch):
    model, params = make(rng, num_layers=1)
    tokens = rng.integers(0, 23, (2, 10))

    def gradient(chunk):
        monkeypatch.setattr(linear_attention, "CHUNK", chunk)
        return jax.grad(lambda params: jnp.sum(jnp.sin(model.apply({"params": params}, tokens))))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), gradient(3), gradient(64)
    )


@pytest.mark.thorough
def test_half_precision_stays_near_full(rng):
    model, params = make(rng)
    half = Decoder(dataclasses.replace(model.config, dtype="bfloat16"), 23)
    tokens = rng.integers(0, 23, (2, 9))
    full, near = (nn.unbox(each.apply({"params": params}, tokens))[..., :23] for each in (model, half))
    np.testing.assert_allclose(near, full, atol=0.15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"position": "alibi"},
            r"position: 'alibi' with mixer 'linear', which has 'none', 'sinusoidal', 'sinusoidal_halves'",
        ),
        ({"num_kv_heads": 1}, r"num_kv_heads: 1 with mixer 'linear', only with 'multi_head'"),
        ({"pattern": "window"}, r"pattern: 'window' with mixer 'linear', only"),
        ({"attention_dropout": 0.1}, r"attention_dropout: 0\.1 with mixer 'linear', only"),
        ({"head_dim": 7}, r"head_dim: 7 is odd"),
    ],
)
def test_what_it_has_not_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)
