"""Kimi Delta Attention: the delta rule with a decay of each channel of the keys."""

import jax

from transformer.layers.mixers.delta import DeltaNet


class KimiDelta(DeltaNet, kw_only=True):  # type: ignore[call-arg]
    """S_t = (I - b_t k_t k_t^T) Diag(a_t) S_(t-1) + b_t k_t v_t^T,

    y_t = W^O (RMSNorm(S_t^T q_t / sqrt(k)) sigmoid(W^G x_t)) in each head, with a = exp(-A softplus(W^A x +
    c)) of k channels and one A for each head, W^A and W^G of rank k, and all else as in `DeltaNet`.
    Source: Kimi Team 2025, "Kimi Linear: An expressive, efficient attention architecture", equation 1 and
    section 4.
    """

    def log_decay(self, x_btd: jax.Array) -> jax.Array:
        """One for each channel, (b, t, h, k)."""
        step_bthk = self.projected("step", x_btd, self.head_dim, ("latent", self.head_dim))
        return -self.rates()[:, None] * self.steps(step_bthk, "heads", "head_dim")

    def finish(self, out_bthv: jax.Array, x_btd: jax.Array, v_bthv: jax.Array) -> jax.Array:
        """A norm, then a gate."""
        gate_bthv = self.projected("gate", x_btd, self.value_width, ("latent", self.head_dim))
        return self.output_norm(out_bthv) * jax.nn.sigmoid(gate_bthv)
