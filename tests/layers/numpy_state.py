"""What mixers with a matrix as state compute, token by token in float64: from the equations of their papers,
and with other operations than theirs."""

import jax
import jax.numpy as jnp
import numpy as np

EPSILON = 0.1
"""That of the norms behind the recurrence: with a small one the scale of what is normalised had no effect."""


def softplus(x):
    return jnp.logaddexp(x, 0.0)


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, scale, epsilon):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + epsilon) * scale


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
    return rms(out, p["output_norm"]["scale"], EPSILON)


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


def rwkv7(p, x_td, positions_t, first_thv):
    """Section 4 of the paper, whose state (v, k) is that of ours transposed; `first` are the first layer's
    values."""
    before_td = jnp.stack([x_td[t - 1] if at else 0 * x_td[t] for t, at in enumerate(positions_t)])
    mixes = dict(zip(("query", "key", "value", "decay", "rate", "gate"), p["mix"], strict=True))
    x = {name: x_td + (before_td - x_td) * mix for name, mix in mixes.items()}
    r, k, v = (linear(p, name, x[name]) for name in ("query", "key", "value"))
    v = v + (first_thv - v) * sigmoid(low_rank(p, "first_value", x["value"]) + p["first_value_bias"])
    hidden = jnp.tanh(linear(p, "decay_down", x["decay"]))
    w = jnp.exp(-np.exp(-0.5) * sigmoid(linear(p, "decay", hidden) + p["decay_bias"]))
    a = sigmoid(low_rank(p, "rate", x["rate"]) + p["rate_bias"])
    c, k = unit(k * p["removal_key"]), k * (1 + (a - 1) * p["replacement"])

    def step(state_hvk, inputs):
        r, w, k, v, a, c, position = inputs
        state_hvk = jnp.where(position == 0, 0.0, state_hvk)
        transition_hkk = jnp.eye(w.shape[-1]) * w[..., None] - c[..., :, None] * (a * c)[..., None, :]
        state_hvk = state_hvk @ transition_hkk + v[..., :, None] * k[..., None, :]
        return state_hvk, jnp.sum(state_hvk * r[..., None, :], axis=-1)

    inputs = r, w, k, v, a, c, jnp.asarray(positions_t)
    state_hvk, out = jax.lax.scan(step, jnp.zeros((*v.shape[1:], k.shape[-1])), inputs)
    centred = out - out.mean(-1, keepdims=True)
    out = (
        centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * p["norm_scale"] + p["norm_bias"]
    )
    out = out + jnp.sum(r * p["bonus"] * k, axis=-1, keepdims=True) * v
    gate = linear(p, "gate", sigmoid(linear(p, "gate_down", x["gate"])))
    return out * gate, state_hvk.swapaxes(-1, -2)


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


def mixed(name, mixer, params, x_td, positions_t, first_thv):
    """y (t, d) of one row, and the state after it."""
    if name == "rwkv7":
        out, state = rwkv7(params, x_td, positions_t, first_thv)
    else:
        read, finish = TOKENS[name]
        q, k, v = (stream(params, part, x_td, positions_t) for part in ("query", "key", "value"))
        q, k = (jnp.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
        tokens = read(params, mixer, x_td, q, k, v)
        out, state = recurrence(tokens, positions_t, jnp.zeros((*q.shape[1:], v.shape[-1])))
        out = finish(params, out, x_td, v)
    y = jnp.einsum("thv,hvd->td", out, params["output"]["kernel"])
    return y + params["output"].get("bias", 0.0), state
