"""Gated DeltaNet: the delta rule with a decay of the whole state."""

import jax

from transformer.layers.mixers.delta import DeltaNet


class GatedDeltaNet(DeltaNet, kw_only=True):  # type: ignore[call-arg]
    """S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T,

    y_t = W^O (RMSNorm(S_t^T q_t / sqrt(k)) SiLU(W^G x_t)) in each head, with a = exp(-A softplus(W^A x + c))
    of Mamba-2, and all else as in `DeltaNet`.
    Source: Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with delta rule", equation 10 and
    section 3.4.
    """

    def log_decay(self, x_btd: jax.Array) -> jax.Array:
        """One for each head, (b, t, h, 1)."""
        return -(self.rates() * self.steps(self.per_head("step", x_btd), "heads"))[..., None]

    def finish(self, out_bthv: jax.Array, x_btd: jax.Array, v_bthv: jax.Array) -> jax.Array:
        """A norm, then a gate."""
        gate_bthv = self.projected("gate", x_btd, self.value_width)
        return self.output_norm(out_bthv) * jax.nn.silu(gate_bthv)
