"""DeltaNet: a state that predicts the value of each key, corrected by the error of its prediction."""

import jax
import jax.numpy as jnp

from transformer.layers.mixers.chunked_state import Tokens
from transformer.layers.mixers.convolved_state import ConvolvedState
from transformer.layers.mixers.state_mixer import unit


class DeltaNet(ConvolvedState, kw_only=True):  # type: ignore[call-arg]
    """S_t = (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, y_t = W^O RMSNorm(S_t^T q_t / sqrt(k)) in each head,

    with b = sigmoid(W^B x), queries and keys divided by their length, and convolutions of `ConvolvedState`.
    With `negative_eigenvalues` b is twice as large, so that the eigenvalue 1 - b of a transition is in (-1,
    1).
    Source: Schlag et al. 2021, "Linear Transformers are secretly fast weight programmers", section 4.2; this
    layer Yang et al. 2024, "Parallelizing linear Transformers with the delta rule over sequence length",
    sections 2.2 and 3.3; b in (0, 2) Grazzi et al. 2025, "Unlocking state-tracking in linear RNNs through
    negative eigenvalues", section 4.
    """

    negative_eigenvalues: bool = False

    def tokens(self, x_btd: jax.Array, q_bthk: jax.Array, k_bthk: jax.Array, v_bthv: jax.Array) -> Tokens:
        """The correction reads at k and writes at b k."""
        strength_bth = jax.nn.sigmoid(self.per_head("strength", x_btd))
        strength_bth *= 2.0 if self.negative_eigenvalues else 1.0
        q_bthk, k_bthk = unit(q_bthk) * self.head_dim**-0.5, unit(k_bthk)
        return Tokens(q_bthk, strength_bth[..., None] * k_bthk, v_bthv, self.log_decay(x_btd), k_bthk)

    def log_decay(self, x_btd: jax.Array) -> jax.Array:
        """0: there is none."""
        return jnp.zeros((*x_btd.shape[:2], self.num_heads, 1))

    def finish(self, out_bthv: jax.Array, x_btd: jax.Array, v_bthv: jax.Array) -> jax.Array:
        """A norm; there is no gate."""
        return self.output_norm(out_bthv)
