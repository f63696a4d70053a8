"""RWKV-7: a state with decay by channel, and removal and replacement by separate rates."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.mixers.base import SHARED
from transformer.layers.mixers.chunked_state import Tokens, advance
from transformer.layers.mixers.state_mixer import State, StateMixer, unit

MIXES = ("query", "key", "value", "decay", "rate", "gate")
"""Names of the projections of x_t mixed with x_(t-1), each with its own weights."""


class RWKV7(StateMixer, kw_only=True):  # type: ignore[call-arg]
    """S_t = (Diag(w_t) - (a_t c_t) c_t^T) S_(t-1) + k'_t v_t^T in each head, with c = k xi / |k xi| and

    w = exp(-exp(-1/2) sigmoid(W^D x)), a = sigmoid(W^A x), k' = k (1 + (a - 1) alpha),
    y_t = W^O (W^G x_t (LayerNorm(S_t^T r_t) + (r_t . rho k'_t) v_t)).

    Each projection reads x_t + mu (x_(t-1) - x_t), with its own mu of each dimension, and x_(-1) = 0 in each
    document. W^D, W^A and W^G are x -> U tanh(V x) + bias, U V x + bias and U sigmoid(V x), all of rank k.
    Values are v + nu (v_0 - v), where v_0 are those of the first layer and nu = sigmoid(U V x + bias).
    Source: Peng et al. 2025, "RWKV-7 Goose with expressive dynamic state evolution", section 4, whose
    receptance r, key c and rate a are here the query, where S is read, and the share that is taken away. In
    the paper ranks grow with the width, and norms have epsilon 64e-5.
    """

    d_model: int

    @nn.compact
    def __call__(
        self, x_btd: jax.Array, *, positions_bt: jax.Array, cache: State | None = None, **_: Any
    ) -> tuple[jax.Array, State | None]:
        """(b, t, d) -> (b, t, d); with a cache also the state and the input of the last token."""
        state_bhkv, past = self.empty_cache(len(x_btd), 0) if cache is None else cache
        inputs_btd = jnp.concatenate([past["input"].astype(x_btd.dtype), x_btd], axis=1)
        change_btd = jnp.where(positions_bt[..., None] > 0, inputs_btd[:, :-1], 0) - x_btd
        mix_id = self.vector(
            "mix", nn.initializers.uniform(1.0), (len(MIXES), self.d_model), ("gates", "embed")
        )
        mixes = zip(MIXES, mix_id.astype(x_btd.dtype), strict=True)
        x = {name: x_btd + mix_d * change_btd for name, mix_d in mixes}
        q_bthk, k_bthk, v_bthk = (self.projected(name, x[name], self.head_dim) for name in MIXES[:3])
        v_bthk = self._with_first_values(v_bthk, x["value"])
        log_decay_bthk = -math.exp(-0.5) * jax.nn.sigmoid(self._low_rank("decay", x["decay"], jnp.tanh))
        rate_bthk = jax.nn.sigmoid(self._low_rank("rate", x["rate"]))
        erase_bthk = unit(k_bthk * self._of_heads("removal_key", nn.initializers.ones))
        replaced_hk = self._of_heads("replacement", nn.initializers.ones)
        k_bthk *= 1 + (rate_bthk - 1) * replaced_hk
        # c reads the state before its decay, of at least exp(-0.61), and `advance` the state behind it.
        reading_bthk = erase_bthk * jnp.exp(-log_decay_bthk)
        tokens = Tokens(q_bthk, k_bthk, v_bthk, log_decay_bthk, reading_bthk, rate_bthk * erase_bthk)
        state_bhkv, out_bthk = advance(state_bhkv, tokens, positions_bt)
        bonus_hk = self._of_heads("bonus", nn.initializers.normal(0.1))
        out_bthk = self._norm(out_bthk) + jnp.sum(q_bthk * bonus_hk * k_bthk, -1, keepdims=True) * v_bthk
        gate_bthk = self.projected("gate", x["gate"], self.head_dim, self._rank, jax.nn.sigmoid)
        y_btd = self.join(out_bthk * gate_bthk, self.d_model)
        return y_btd, None if cache is None else (state_bhkv, {"input": inputs_btd[:, -1:]})

    def empty_cache(self, rows: int, slots: int) -> State:
        """S = 0, and no token before."""
        return self.empty_matrices(rows), {"input": jnp.zeros((rows, 1, self.d_model), self.dtype)}

    @property
    def _rank(self) -> tuple[str, int]:
        return "latent", self.head_dim

    def _low_rank(self, name: str, x_btd: jax.Array, activation: Any = lambda x: x) -> jax.Array:
        product_bthk = self.projected(name, x_btd, self.head_dim, self._rank, activation)
        return product_bthk + self._of_heads(f"{name}_bias", nn.initializers.zeros)

    def _of_heads(self, name: str, init: Any) -> jax.Array:
        return self.vector(name, init, (self.num_heads, self.head_dim), ("heads", "head_dim"))

    def _with_first_values(self, v_bthk: jax.Array, x_btd: jax.Array) -> jax.Array:
        first_bthk = self.get_variable(SHARED, "first_values", v_bthk)
        if self.is_mutable_collection(SHARED):
            self.put_variable(SHARED, "first_values", first_bthk)
        share_bthk = jax.nn.sigmoid(self._low_rank("first_value", x_btd))
        return v_bthk + share_bthk * (first_bthk - v_bthk)

    def _norm(self, out_bthk: jax.Array) -> jax.Array:
        centred_bthk = out_bthk - jnp.mean(out_bthk, axis=-1, keepdims=True)
        variance_bth1 = jnp.mean(jnp.square(centred_bthk), axis=-1, keepdims=True)
        scale_hk = self._of_heads("norm_scale", nn.initializers.ones)
        shift_hk = self._of_heads("norm_bias", nn.initializers.zeros)
        return centred_bthk * jax.lax.rsqrt(variance_bth1 + self.norm_epsilon) * scale_hk + shift_hk
