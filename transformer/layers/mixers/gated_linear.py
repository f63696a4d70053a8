"""Gated linear attention: linear attention whose state decays, by an amount that each token chooses."""

from typing import ClassVar

import jax
from flax import linen as nn

from transformer.layers.mixers.chunked_state import Tokens
from transformer.layers.mixers.convolved_state import ConvolvedState

RANK = 16
"""That of the matrix from which decays are computed."""

TEMPERATURE = 16.0
"""The root of sigmoids that decays are, so that they begin near 1."""


class GatedLinear(ConvolvedState, kw_only=True):  # type: ignore[call-arg]
    """S_t = Diag(a_t) S_(t-1) + k_t v_t^T, y_t = W^O (RMSNorm(S_t^T q_t / sqrt(k)) SiLU(W^G x_t)),

    in each head, with a = sigmoid(W^A x + c)^(1 / 16) of k channels, W^A of rank 16, and no convolutions.
    Source: Yang et al. 2024, "Gated linear attention Transformers with hardware-efficient training",
    equation 3 and section 4.4; the norm is that of the authors' code.
    """

    own_conv_width: ClassVar[int] = 1

    def tokens(self, x_btd: jax.Array, q_bthk: jax.Array, k_bthk: jax.Array, v_bthv: jax.Array) -> Tokens:
        """A decay of each channel."""
        logits_bthk = self.projected("decay", x_btd, self.head_dim, (None, RANK))
        sizes, names = (self.num_heads, self.head_dim), ("heads", "head_dim")
        logits_bthk += self.vector("decay_bias", nn.initializers.zeros, sizes, names)
        log_decay_bthk = jax.nn.log_sigmoid(logits_bthk) / TEMPERATURE
        return Tokens(q_bthk * self.head_dim**-0.5, k_bthk, v_bthv, log_decay_bthk)

    def finish(self, out_bthv: jax.Array, x_btd: jax.Array, v_bthv: jax.Array) -> jax.Array:
        """A norm, then a gate."""
        gate_bthv = self.projected("gate", x_btd, self.value_width)
        return self.output_norm(out_bthv) * jax.nn.silu(gate_bthv)
