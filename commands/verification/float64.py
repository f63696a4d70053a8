"""Functions traced as they are and computed in float64, whatever types they name."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from transformer.evaluation import nonfinite

PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
CALLS = {"jit": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr", "closed_call": "call_jaxpr",
         "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "shard_map": "jaxpr"}  # fmt: skip
"""Operation that calls a function -> its parameter with that function."""

SAME = {"sharding_constraint", "layout_constraint", "reduce_precision", "device_put", "copy", "mesh_cast"}
"""Operations that change where an array is, or round it."""

SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "scatter": jax.lax.scatter, "scatter-add": jax.lax.scatter_add, "scatter_mul": jax.lax.scatter_mul,
    "scatter_min": jax.lax.scatter_min, "scatter_max": jax.lax.scatter_max,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Size:
    """The numbers that rounding errors grow with: products on the longest chain of operations that depend on
    each other, and terms of the longest of their sums."""

    depth: int
    length: int


def in_float64(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Size]:
    """function(*arguments) as float64 NumPy arrays on one device, and its size.

    The function is traced in its own types, and then every operation on floats is computed on float64: also
    those that name float32 or bfloat16. Random numbers and masks stay the same. Functions with a derivative
    of their own (`jax.custom_vjp`) are differentiated as they are computed instead.
    """
    # Part of the key of JAX's cache of traces, which hold derivatives of functions' own.
    with _plain_derivatives(), jax.default_matmul_precision("highest"):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    with jax.enable_x64(True):
        compute = jax.jit(lambda *inputs: _evaluate(closed.jaxpr, [*closed.consts, *inputs]))
        results = compute(*map(_on_host, jax.tree.leaves(arguments)))
        results = jax.block_until_ready(results)
        jax.effects_barrier()
    flat = [x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x) for x in results]
    return jax.tree.unflatten(jax.tree.structure(shapes), flat), size(closed.jaxpr)


@contextlib.contextmanager
def _plain_derivatives() -> Iterator[None]:
    call = jax.custom_vjp.__call__

    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        observes = self.fun.__module__ == nonfinite.__name__  # in the backward pass too
        return call(self, *args, **kwargs) if observes else self.fun(*args, **kwargs)

    with mock.patch.object(jax.custom_vjp, "__call__", plain):
        yield


def size(jaxpr: Any) -> Size:
    """The size of a program; a loop counts as often as it is repeated, if that is known."""
    depths: dict[Any, int] = {}
    length = 1
    for eqn in jaxpr.eqns:
        inner = [size(_opened(x)[0]) for x in _functions(eqn.params.values())]
        own = max((part.depth for part in inner), default=int(eqn.primitive.name in PRODUCTS))
        own *= eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        shape = eqn.invars[0].aval.shape if eqn.invars else ()
        axes = eqn.params["dimension_numbers"][0][0] if eqn.primitive.name == "dot_general" else ()
        length = max([length, math.prod(shape[i] for i in axes), *(part.length for part in inner)])
        before = max((depths.get(x, 0) for x in eqn.invars if not isinstance(x, Literal)), default=0)
        depths |= dict.fromkeys(eqn.outvars, before + own)
    return Size(max(depths.values(), default=0), length)


def _functions(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _functions(value)


def _on_host(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    return _wide(np.asarray(x))


def _wide(x: Any) -> Any:
    floats = jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(jnp.float64) if floats and x.dtype != jnp.float64 else x


def _wide_type(value: Any) -> Any:
    floats = isinstance(value, np.dtype) and jnp.issubdtype(value, jnp.floating)
    return np.dtype("float64") if floats else value


def _evaluate(jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of a program on `inputs`, its constants among them, in float64."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], map(_wide, inputs), strict=True))

    def read(x: Any) -> Any:
        kind: Any = x.aval
        return _wide(jnp.asarray(x.val, kind.dtype)) if isinstance(x, Literal) else values[x]

    for eqn in jaxpr.eqns:
        results = _apply(eqn, eqn.primitive.name, [read(x) for x in eqn.invars])
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _call(function: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of a `Jaxpr` without constants, or of a `ClosedJaxpr`."""
    jaxpr, consts = _opened(function)
    return _evaluate(jaxpr, [*consts, *inputs])


def _opened(function: Any) -> tuple[Any, Sequence[Any]]:
    return (function.jaxpr, function.consts) if isinstance(function, ClosedJaxpr) else (function, ())


def _apply(eqn: Any, name: str, inputs: list[Any]) -> Sequence[Any]:
    p = eqn.params
    if name in CALLS:
        return _call(p[CALLS[name]], inputs)
    if name in SAME:
        return inputs
    if name == "scan":
        return _scan(p, inputs)
    if name == "while":
        n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        go_on, body = inputs[:n], inputs[n:m]
        return jax.lax.while_loop(
            lambda carry: _call(p["cond_jaxpr"], [*go_on, *carry])[0],
            lambda carry: _call(p["body_jaxpr"], [*body, *carry]),
            inputs[m:],
        )
    if name == "cond":
        branches = [lambda *x, branch=branch: _call(branch, x) for branch in p["branches"]]
        return jax.lax.switch(inputs[0].astype(jnp.int32), branches, *inputs[1:])
    if name in SCATTERS:
        options = {
            key: p[key] for key in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
        }
        return [SCATTERS[name](*inputs, **options)]
    if name == "bitcast_convert_type":  # random numbers: the bits of a float32
        narrow = inputs[0].astype(eqn.invars[0].aval.dtype)
        return [_wide(jax.lax.bitcast_convert_type(narrow, p["new_dtype"]))]
    result = eqn.primitive.bind(*inputs, **{key: _wide_type(value) for key, value in p.items()})
    return result if eqn.primitive.multiple_results else [result]


def _scan(p: dict[str, Any], inputs: list[Any]) -> list[Any]:
    n, m = p["num_consts"], p["num_consts"] + p["num_carry"]

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _call(p["jaxpr"], [*inputs[:n], *carry, *x])
        return results[: p["num_carry"]], results[p["num_carry"] :]

    carry, results = jax.lax.scan(body, inputs[n:m], inputs[m:], p["length"], p["reverse"])
    return [*carry, *results]
