"""Gated attention: each dimension of the heads' outputs is multiplied by a sigmoid of the token."""

from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.attention.attention import MultiHeadAttention


class GatedAttention(MultiHeadAttention, kw_only=True):  # type: ignore[call-arg]
    """sum_h W_h^O (sigmoid(W_h^G x) head_h), with the heads of `MultiHeadAttention`.

    Source: Qiu et al. 2025, "Gated attention for large language models", section 2.2: the gate behind the
    attention (G1), of each head and dimension.
    """

    def setup(self) -> None:
        """Those of the heads, and that of the gate."""
        super().setup()
        self.gate = self._linear((self.num_heads, self.head_dim), ("embed", "heads", "head_dim"))

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, h, 2 k): queries, then gates."""
        return jnp.concatenate([super().queries(x_btd, positions_bt), self.gate(x_btd)], axis=-1)

    def attend(self, q_bthk: jax.Array, *inputs: Any) -> jax.Array:
        """The outputs of the heads by the queries, times the gates."""
        q_bthk, gate_bthk = jnp.split(q_bthk, 2, axis=-1)
        return super().attend(q_bthk, *inputs) * jax.nn.sigmoid(gate_bthk)
