"""Mamba-2: a state space model with one decay for each head."""

from typing import ClassVar

import jax
from flax import linen as nn

from transformer.layers.mixers.chunked_state import Tokens
from transformer.layers.mixers.convolved_state import ConvolvedState


class Mamba2(ConvolvedState, kw_only=True):  # type: ignore[call-arg]
    """S_t = a_t S_(t-1) + k_t (s_t v_t)^T, y_t = W^O RMSNorm((S_t^T q_t + D v_t) SiLU(W^G x_t)),

    with steps s = softplus(W^A x + c), a = exp(-A s) and a learned D for each head, one key head for all, and
    convolutions with biases. In the paper's words q is C, k is B, v is X, s is Delta, `head_dim` the state
    size N and `value_dim` the head dimension P. The norm is over all heads.
    Source: Dao and Gu 2024, "Transformers are SSMs", sections 5 to 7 (SSD, and the block in parallel form of
    figure 6).
    """

    conv_bias: ClassVar[bool] = True

    def tokens(self, x_btd: jax.Array, q_bthk: jax.Array, k_bthk: jax.Array, v_bthv: jax.Array) -> Tokens:
        """Steps scale the values, and are the exponents of decays."""
        step_bth = self.steps(self.per_head("step", x_btd), "heads")
        return Tokens(q_bthk, k_bthk, step_bth[..., None] * v_bthv, -(self.rates() * step_bth)[..., None])

    def finish(self, out_bthv: jax.Array, x_btd: jax.Array, v_bthv: jax.Array) -> jax.Array:
        """A gate, then a norm."""
        skip_h = self.vector("skip", nn.initializers.ones, (self.num_heads,), ("heads",))
        gate_bthv = self.projected("gate", x_btd, self.value_width)
        out_bthv = (out_bthv + skip_h[:, None] * v_bthv) * jax.nn.silu(gate_bthv)
        return self.output_norm(out_bthv.reshape(*out_bthv.shape[:2], -1)).reshape(out_bthv.shape)

    @property
    def key_heads(self) -> int:
        """One, unless `num_key_heads` says how many."""
        return self.num_key_heads or 1
