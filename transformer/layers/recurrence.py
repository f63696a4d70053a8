"""Recurrent layers over packed rows: gated cells, and a loop over time that they share."""

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.linear import Linear, contract

CellState = tuple[jax.Array, ...]
"""The state of a cell, in float32: h, which is also its output, then further arrays."""


class Cell(Protocol):
    """A recurrence without parameters: x (..., g, d) is the input's and u the last state's contribution to
    the g gates of d units."""

    gates: int
    parts: int
    forget: float

    @staticmethod
    def advance(state: CellState, x: jax.Array, u: jax.Array) -> CellState:
        """The next state."""
        ...

    @staticmethod
    def begin(v: jax.Array) -> CellState:
        """The initial state from a vector (..., d)."""
        ...


class GRU:
    """r = sigmoid(x_r + u_r), z = sigmoid(x_z + u_z), n = tanh(x_n + r u_n), h' = (1 - z) n + z h.

    The reset gate is applied after the product with h, so that one matrix product computes all three gates.
    Source: Cho et al. 2014, section 2.3; this order: version 1 of the paper, and cuDNN.
    """

    gates, parts, forget = 3, 1, 0.0

    @staticmethod
    def advance(state: CellState, x: jax.Array, u: jax.Array) -> CellState:
        """(h) -> (h')."""
        (h,) = state
        r = jax.nn.sigmoid(x[..., 0, :] + u[..., 0, :])
        z = jax.nn.sigmoid(x[..., 1, :] + u[..., 1, :])
        n = jnp.tanh(x[..., 2, :] + r * u[..., 2, :])
        return ((1 - z) * n + z * h,)

    @staticmethod
    def begin(v: jax.Array) -> CellState:
        """h = tanh(v) (Bahdanau et al. 2015, appendix A.2.2)."""
        return (jnp.tanh(v),)


class LSTM:
    """i, f, o = sigmoid(x + u), g = tanh(x_g + u_g), c' = f c + i g, h' = o tanh(c'); gates in order i f g o.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000, whose bias starts at 1
    (Jozefowicz et al. 2015, section 2.2).
    """

    gates, parts, forget = 4, 2, 1.0

    @staticmethod
    def advance(state: CellState, x: jax.Array, u: jax.Array) -> CellState:
        """(h, c) -> (h', c')."""
        _, c = state
        i, f, g, o = (x[..., k, :] + u[..., k, :] for k in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    @staticmethod
    def begin(v: jax.Array) -> CellState:
        """c = v, h = tanh(v)."""
        return jnp.tanh(v), v


CELLS: dict[str, type[Cell]] = {"gru": GRU, "lstm": LSTM}


class Feedback(nn.Module):
    """The kernel U (d, g, d) and the bias c (g, d) of U h + c; each gate's U is initialised orthogonal (Saxe
    et al. 2014). They are replicated: sharded ones would be gathered in every step of the loop."""

    cell: str
    width: int

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        """Both, in float32."""
        kind, names = CELLS[self.cell], ("gates", "state")

        def orthogonal(rng: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
            square = functools.partial(nn.initializers.orthogonal(), shape=shape[::2], dtype=dtype)
            return jax.vmap(square, out_axes=1)(jax.random.split(rng, shape[1]))

        def open_gate(rng: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
            return jnp.zeros(shape, dtype).at[1].set(kind.forget)

        kernel_init = nn.with_logical_partitioning(orthogonal, ("replicated", *names))
        bias_init = nn.with_logical_partitioning(open_gate, names)
        shape = kind.gates, self.width
        kernel: Any = self.param("kernel", kernel_init, (self.width, *shape), jnp.float32)
        bias: Any = self.param("bias", bias_init, shape, jnp.float32)
        return kernel, bias


class RNNLayer(nn.Module):
    """h_t = cell(h_{t-1}, W x_t + b, U h_{t-1} + c), over the segments of packed rows.

    W x + b is one product for all steps; only U h is computed in the loop. With `reverse` the loop runs from
    right to left. Products are of type `dtype`, states and gates are float32. There are two biases as in
    cuDNN; only the n gate of the GRU needs both.
    """

    cell: str
    width: int
    reverse: bool = False
    dtype: str = "float32"

    def setup(self) -> None:
        """W and b are `input`, U and c `recurrent`."""
        gates = CELLS[self.cell].gates
        self.input = Linear((gates, self.width), names=("embed", "gates", "state"), dtype=self.dtype)
        self.recurrent = Feedback(self.cell, self.width)

    def __call__(
        self, x_btd: jax.Array, starts_bt: jax.Array, valid_bt: jax.Array, begin_btd: jax.Array | None = None
    ) -> jax.Array:
        """(b, t, any) -> h (b, t, d), of type `dtype`.

        Where `starts_bt` is True the state is reset to `CELLS[cell].begin` of `begin_btd` (None: to zeros);
        where `valid_bt` is False it is kept unchanged.
        """
        kind = CELLS[self.cell]
        # Time first, so that a step of the loop reads contiguous memory.
        x_tbgd = self.input(x_btd.swapaxes(0, 1))
        begin = None if begin_btd is None else kind.begin(begin_btd.swapaxes(0, 1).astype(jnp.float32))
        flags = starts_bt.T, valid_bt.T
        h_tbd = _scan(kind, self.reverse, self.dtype, x_tbgd, self.recurrent(), begin, flags)
        return h_tbd.swapaxes(0, 1).astype(self.dtype)

    def step(self, x: jax.Array, state: CellState) -> CellState:
        """The state (..., d) after one input (..., any)."""
        u = _recur(state, self.recurrent(), self.dtype)
        return CELLS[self.cell].advance(state, self.input(x).astype(jnp.float32), u)


def boundaries(segments_bt: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Three masks (b, t): first tokens of segments, last tokens, and tokens (segment 0 is padding)."""
    valid_bt = segments_bt > 0
    differs = segments_bt[:, 1:] != segments_bt[:, :-1]
    starts_bt = valid_bt & jnp.pad(differs, ((0, 0), (1, 0)), constant_values=True)
    ends_bt = valid_bt & jnp.pad(differs, ((0, 0), (0, 1)), constant_values=True)
    return starts_bt, ends_bt, valid_bt


def _recur(state: CellState, u: tuple[jax.Array, jax.Array], dtype: str) -> jax.Array:
    kernel, bias = u
    return contract(state[0], kernel, dtype=dtype, out_dtype=jnp.float32) + bias


def _where(flag_b: jax.Array, a: CellState, b: CellState) -> CellState:
    return jax.tree.map(functools.partial(jnp.where, flag_b[:, None]), a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _scan(kind: type[Cell], reverse: bool, dtype: str, x_tbgd, u, begin, flags) -> jax.Array:
    return _scan_forward(kind, reverse, dtype, x_tbgd, u, begin, flags)[0]


def _scan_forward(kind, reverse, dtype, x_tbgd, u, begin, flags):
    # Autodiff would store every gate, and accumulate the kernel's gradient in every step. This custom VJP
    # stores only the states, and its backward loop has one matrix product per step, like the forward loop.
    zeros = (jnp.zeros((x_tbgd.shape[1], x_tbgd.shape[3]), jnp.float32),) * kind.parts

    def step(state, inputs):
        x, first, (start, valid) = inputs
        last = _where(start, zeros if first is None else first, state)
        state = _where(valid, kind.advance(last, x.astype(jnp.float32), _recur(last, u, dtype)), last)
        return state, (state[0], last)

    _, (h_tbd, lasts) = jax.lax.scan(step, zeros, (x_tbgd, begin, flags), reverse=reverse)
    return h_tbd, (x_tbgd, u, begin, flags, lasts)


def _scan_backward(kind, reverse, dtype, residuals, dh_tbd):
    x_tbgd, u, begin, flags, lasts = residuals
    transposed = u[0].transpose(1, 2, 0)
    zeros = jax.tree.map(lambda s: jnp.zeros_like(s[0]), lasts)

    def step(dstate, inputs):
        x, u, last, dh, (start, valid) = inputs
        dstate = (dstate[0] + dh, *dstate[1:])
        _, backward = jax.vjp(kind.advance, last, x.astype(jnp.float32), u)
        dlast, dx, du = backward(_where(valid, dstate, zeros))
        through = contract(du, transposed, dtype=dtype, out_dtype=jnp.float32, axis=2)
        dlast = (dlast[0] + through, *dlast[1:])
        dlast = jax.tree.map(jnp.add, dlast, _where(valid, zeros, dstate))
        dbegin = None if begin is None else _where(start, dlast, zeros)
        return _where(start, zeros, dlast), (dx.astype(x.dtype), du, dbegin)

    inputs = x_tbgd, _recur(lasts, u, dtype), lasts, dh_tbd, flags
    _, (dx, du, dbegin) = jax.lax.scan(step, zeros, inputs, reverse=not reverse)
    dkernel = jnp.einsum(
        "tbd,tbge->dge", lasts[0].astype(dtype), du.astype(dtype), preferred_element_type=jnp.float32
    )
    return dx, (dkernel, du.sum((0, 1))), dbegin, None


_scan.defvjp(_scan_forward, _scan_backward)
