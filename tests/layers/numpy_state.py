"""What mixers with a matrix as state compute, token by token in float64: from the equations of their papers, and with
other operations than theirs."""

import jax
import jax.numpy as jnp
import numpy as np


def softplus(x):
    return jnp.logaddexp(x, 0.0)


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, scale):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def unit(x):
    return x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)


def linear(p, name, x_td):
    y = jnp.tensordot(x_td, p[name]["kernel"], 1)
    return y + p[name].get("bias", 0.0)


def low_rank(p, name, x_td):
    return linear(p, name, linear(p, f"{name}_down", x_td))


def stream(p, name, x_td, positions_t):
    """A projection and its convolution, if it has one; (t, h, k)."""
    y = linear(p, name, x_td)
    if f"{name}_convolution" in p:
        taps, rows = p[f"{name}_convolution"]["kernel"], []
        for t, position in enumerate(positions_t):
            seen = range(min(len(taps), position + 1))
            rows.append(sum(taps[j] * y[t - j] for j in seen) + p[f"{name}_convolution"].get("bias", 0.0))
        y = silu(jnp.stack(rows))
    return y if y.ndim == 3 else y[:, None]


def decay(p, x, rate):
    """(t, h, channels), as a factor."""
    return jnp.exp(-jnp.exp(rate) * softplus(x + p["step_bias"]))


def delta(p, mixer, x, q, k, v):
    b = sigmoid(linear(p, "strength", x))[..., None] * (1 + mixer.negative_eigenvalues)
    q, k = unit(q) / np.sqrt(q.shape[-1]), unit(k)
    return {"q": q, "k": b * k, "v": v, "a": jnp.ones_like(b), "reads": k, "takes": b * k}


def gated_delta(p, mixer, x, q, k, v):
    return delta(p, mixer, x, q, k, v) | {"a": decay(p, linear(p, "step", x), p["log_rate"])[..., None]}


def kimi_delta(p, mixer, x, q, k, v):
    return delta(p, mixer, x, q, k, v) | {"a": decay(p, low_rank(p, "step", x), p["log_rate"][:, None])}


def gated_linear(p, mixer, x, q, k, v):
    a = sigmoid(low_rank(p, "decay", x) + p["decay_bias"]) ** (1 / 16)
    return {"q": q / np.sqrt(q.shape[-1]), "k": k, "v": v, "a": a}


def mamba2(p, mixer, x, q, k, v):
    step = softplus(linear(p, "step", x) + p["step_bias"])[..., None]
    return {"q": q, "k": k, "v": step * v, "a": jnp.exp(-jnp.exp(p["log_rate"])[:, None] * step)}


def normed(p, out):
    return rms(out, p["output_norm"]["scale"])


def normed_together(p, out, x, v):
    out = (out + p["skip"][:, None] * v) * silu(linear(p, "gate", x))
    return normed(p, out.reshape(len(out), -1)).reshape(out.shape)


TOKENS = {
    "delta": (delta, lambda p, out, x, v: normed(p, out)),
    "gated_delta": (gated_delta, lambda p, out, x, v: normed(p, out) * silu(linear(p, "gate", x))),
    "kimi_delta": (kimi_delta, lambda p, out, x, v: normed(p, out) * sigmoid(low_rank(p, "gate", x))),
    "gated_linear": (gated_linear, lambda p, out, x, v: normed(p, out) * silu(linear(p, "gate", x))),
    "mamba2": (mamba2, normed_together),
}
"""Name of a mixer -> what its recurrence reads, and what is done with its outputs."""


def recurrence(tokens, positions_t, state_hkv):
    """The outputs (t, h, v), and the last state: the transition is a matrix, multiplied with the state."""

    def step(state, inputs):
        at, position = inputs
        state = jnp.where(position == 0, 0.0, state)
        k = at["q"].shape[-1]
        transition_hkk = jnp.eye(k) * at["a"][..., None, :]
        if "reads" in at:
            removal_hkk = at["takes"][..., :, None] * at["reads"][..., None, :]
            transition_hkk = (jnp.eye(k) - removal_hkk) @ transition_hkk
        state = transition_hkk @ state + at["k"][..., :, None] * at["v"][..., None, :]
        return state, jnp.sum(state * at["q"][..., None], axis=-2)

    state_hkv, out_thv = jax.lax.scan(step, state_hkv, (tokens, jnp.asarray(positions_t)))
    return out_thv, state_hkv


def mixed(name, mixer, params, x_td, positions_t):
    """y (t, d) of one row, and the state after it."""
    read, finish = TOKENS[name]
    q, k, v = (stream(params, each, x_td, positions_t) for each in ("query", "key", "value"))
    q, k = (jnp.repeat(each, v.shape[1] // each.shape[1], axis=1) for each in (q, k))
    tokens = read(params, mixer, x_td, q, k, v)
    out, state = recurrence(tokens, positions_t, jnp.zeros((*q.shape[1:], v.shape[-1])))
    return jnp.einsum("thv,hvd->td", finish(params, out, x_td, v), params["output"]["kernel"]), state
