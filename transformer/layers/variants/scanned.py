"""Stacks of blocks as a loop of the compiled program, over rounds of one block of each kind."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def scanned(
    stack: Any, run_layers: Callable, state: Any, params: Any, caches: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """`run_layers(state, first, layers)`, of the `Stack` over all layers, with one compiled round of blocks.

    Layers after the last whole round are unrolled; and so is the first round of a stack whose layers hand
    variables on, which a loop cannot begin.
    """
    m, n = len(stack.blocks), stack.num_layers
    whole, first, results = n - n % m, 0, []
    rest: list[Any] = []
    if m == 1:  # without a copy of the parameters
        spread = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape[1:])), params)
        places = [(spread, _stacked(*caches))]
    else:
        layers = [*zip(stack.unstack(params), caches, strict=True)]
        places, rest = [_stacked(*layers[i:whole:m]) for i in range(m)], layers[whole:]
    first_round = jax.tree.map(operator.itemgetter(0), places)
    (_, shared), _ = jax.eval_shape(lambda: run_layers(state, 0, first_round))
    structures: list[Any] = [jax.tree.structure(tree) for tree in (shared, state[1])]
    if structures[0] != structures[1]:
        state, results = run_layers(state, 0, first_round)
        places, first = jax.tree.map(lambda x: x[1:], places), m

    def run_round(carry: tuple[Any, jax.Array], layers: Sequence[Any]) -> tuple[Any, list[Any]]:
        state, results = run_layers(*carry, layers)
        return (state, carry[1] + m), results

    (state, _), of_rounds = jax.lax.scan(run_round, (state, jnp.int32(first)), places)
    for i in range(whole - first):
        results.append(jax.tree.map(operator.itemgetter(i // m), of_rounds[i % m]))
    state, of_rest = run_layers(state, whole, rest)
    return state, results + of_rest


def _stacked(*layers: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
