"""Position-wise feed-forward networks, plain and gated."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.devices import platform
from transformer.layers.linear import Linear
from transformer.layers.variants.clamped import clamped_gate, clamped_up


class FeedForward(nn.Module):
    """The same two-layer network at every position.

    Plain:  down(act(up(x))), with act ReLU (Vaswani et al. 2017, section 3.3), squared ReLU, GELU or SiLU.
    Gated:  down(act(gate(x)) * up(x)), with act SiLU or GELU: SwiGLU, GeGLU (Shazeer 2020). `of_up` is a
            further function of up(x).
    `d_ff` is the hidden width; `output_scale` multiplies the variance of the output kernel's initialisation.
    `linear` makes the layers, and `hidden` names the logical axes of the hidden units.
    """

    d_ff: int
    activation: Callable[[jax.Array], jax.Array]
    gated: bool = False
    use_bias: bool = True
    dtype: str = "float32"
    output_scale: float = 1.0
    linear: Callable[..., nn.Module] = Linear
    hidden: tuple[str | None, ...] = ("batch", "length", "mlp")
    of_up: Callable[[jax.Array], jax.Array] = jnp.asarray

    @nn.compact
    def __call__(self, x_btd: jax.Array, **_: Any) -> jax.Array:
        """(b, t, d) -> (b, t, d); further inputs are those of `Experts`."""
        linear = functools.partial(self.linear, use_bias=self.use_bias, dtype=self.dtype)
        up_btf = linear((self.d_ff,), names=("embed", "mlp"), name="up")(x_btd)
        if self.gated:
            gate_btf = linear((self.d_ff,), names=("embed", "mlp"), name="gate")(x_btd)
            hidden_btf = self.activation(gate_btf) * self.of_up(up_btf)
        else:
            hidden_btf = self.activation(up_btf)
        hidden_btf = nn.with_logical_constraint(hidden_btf, self.hidden)
        down = linear((x_btd.shape[-1],), names=("mlp", "embed"), init_scale=self.output_scale, name="down")
        return down(hidden_btf)


@functools.partial(jax.checkpoint, static_argnums=0)
def _gelu_by(approximate: bool, x: jax.Array) -> jax.Array:
    """Rematerialised: otherwise its backward pass would store several arrays of the hidden width. XLA on CPU
    would round bfloat16 after each operation, which takes three times as long as one computation in
    float32; on a GPU, GELU in the type of x becomes part of the matrix product."""
    inside = jnp.promote_types(x.dtype, jnp.float32) if platform() == "cpu" else x.dtype
    return jax.nn.gelu(x.astype(inside), approximate).astype(x.dtype)


_gelu, _gelu_exact = functools.partial(_gelu_by, True), functools.partial(_gelu_by, False)


def _relu2(x: jax.Array) -> jax.Array:
    """max(x, 0)^2. Source: So et al. 2021 (Primer), section 4.1."""
    return jnp.square(jax.nn.relu(x))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "relu2": _relu2,
    "gelu": _gelu,
    "gelu_exact": _gelu_exact,
    "silu": jax.nn.silu,
}
"""Activations by name. `gelu_exact` is x Phi(x), with the normal distribution function, and `gelu` its
approximation by tanh, which is faster (Hendrycks and Gimpel 2016, section 2)."""

FEED_FORWARDS: dict[str, Callable[..., nn.Module] | None] = {
    "none": None,
    "relu": functools.partial(FeedForward, activation=jax.nn.relu),
    "relu2": functools.partial(FeedForward, activation=_relu2),
    "gelu": functools.partial(FeedForward, activation=_gelu),
    "gelu_exact": functools.partial(FeedForward, activation=_gelu_exact),
    "silu": functools.partial(FeedForward, activation=jax.nn.silu),
    "swiglu": functools.partial(FeedForward, activation=jax.nn.silu, gated=True),
    "swiglu_clamped": functools.partial(FeedForward, activation=clamped_gate, of_up=clamped_up, gated=True),
    "geglu": functools.partial(FeedForward, activation=_gelu, gated=True),
    "geglu_exact": functools.partial(FeedForward, activation=_gelu_exact, gated=True),
}
"""Value of `model.feed_forward` -> constructor with `d_ff`, `use_bias`, `dtype` and `output_scale`; None:
blocks have no feed-forward sublayer."""


def num_kernels(name: str) -> int:
    """The number of kernels (d_model, d_ff) or (d_ff, d_model) of a member of `FEED_FORWARDS`."""
    make = FEED_FORWARDS[name]
    return 0 if make is None else 3 if getattr(make, "keywords", {}).get("gated") else 2
