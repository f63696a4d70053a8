"""A mixture of experts beside an expert that computes every token."""

import jax
from flax import linen as nn

from transformer.layers.linear import Linear
from transformer.layers.variants.experts import Experts


class SharedExperts(Experts):
    """y = Experts(x) + g(x) shared(x), with `shared` a network of the hidden width `shared_d_ff`.

    g = 1 (Dai et al. 2024, "DeepSeekMoE", section 3.2; several shared experts are one of their joint width),
    or with `shared_gate` sigmoid(w . x) (Qwen Team 2024, Qwen1.5-MoE, and its released code). It has no
    capacity, and no part in the terms.
    """

    shared_d_ff: int = 1
    shared_gate: bool = False

    @nn.compact
    def __call__(
        self, x_btd: jax.Array, *, segments_bt: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """(b, t, d) -> (b, t, d); inputs and errors are those of `Experts`."""
        y_btd = super().__call__(x_btd, segments_bt=segments_bt, train=train)
        shared_btd = self.network(d_ff=self.shared_d_ff, name="shared")(x_btd)
        if self.shared_gate:
            logits_bt1 = Linear((1,), names=("embed", None), use_bias=False, name="shared_gate")(x_btd)
            shared_btd = shared_btd * jax.nn.sigmoid(logits_bt1).astype(shared_btd.dtype)
        return y_btd + shared_btd
