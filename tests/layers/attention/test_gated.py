"""Gated attention is multi-head attention whose heads' outputs are multiplied by sigmoids."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.parameters import random_params
from transformer.layers.attention.attention import MultiHeadAttention
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions.rope import Rope
from transformer.layers.mixers import GatedAttention


def test_outputs_of_heads_are_gated(rng):
    sizes = {"num_heads": 4, "head_dim": 6, "num_kv_heads": 2, "qk_norm": True}
    gated, plain = (
        kind(position=Rope(parent=None), **sizes) for kind in (GatedAttention, MultiHeadAttention)
    )
    x_btd, positions_bt = np.float32(rng.normal(size=(2, 9, 5))), jnp.arange(9)[None].repeat(2, axis=0)
    inputs = {"mask": Mask(causal=True), "positions_bt": positions_bt}
    params = random_params(rng, gated, x_btd, **inputs)
    found, _ = jax.jit(lambda params: gated.apply({"params": params}, x_btd, **inputs))(params)
    gate, output = params["gate"], params["output"]
    heads = {name: value for name, value in params.items() if name not in ("gate", "output")}

    def outputs_of_heads(mixer, x_btd):
        q_bthk, keys_values = mixer.queries(x_btd, positions_bt), mixer.keys_values(x_btd, positions_bt)
        return mixer.attend(q_bthk, *keys_values, inputs["mask"], positions_bt, positions_bt, False)

    out_bthk = plain.apply({"params": heads}, x_btd, method=outputs_of_heads)
    logits_bthk = np.einsum("btd,dhk->bthk", x_btd, gate["kernel"]) + gate["bias"]
    out_bthk = out_bthk / (1 + np.exp(-logits_bthk))
    expected = np.einsum("bthk,hkd->btd", out_bthk, output["kernel"]) + output["bias"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
