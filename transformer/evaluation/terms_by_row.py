"""The part of each row, or of each target, in the terms of a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.training.experiment import Batch, Objective, Params
from transformer.training.metrics import Sum

WEIGHTS = ("weights", "bytes")
"""The usual names of the arrays of a batch that weigh its positions (see `Objective.weights`)."""

Rows = dict[str, jax.Array]
"""Name of a term -> (b, 2): the total and the weight of each row of a batch."""


def split_by_row(
    measure: Callable[[Batch], tuple[dict[str, Sum], Any]], batch: Batch, names: Sequence[str] = WEIGHTS
) -> tuple[dict[str, Sum], Rows, Any]:
    """The terms by `measure`, in total and per row, and its second result.

    Totals and weights are linear in the batch's arrays of these names, so the part of a row is the derivative
    by a factor of its weights. The backward pass does not go through the model. Terms without weights in the
    batch have no rows.
    """
    weights = {name: jnp.asarray(batch[name], jnp.float32) for name in names if name in batch}
    if not weights:
        terms, aux = measure(batch)
        return terms, {}, aux

    def scaled(factor_b: jax.Array) -> tuple[dict[str, Sum], Any]:
        parts = {name: (factor_b * values.T).T for name, values in weights.items()}
        terms, aux = measure({**batch, **parts})
        return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), terms), aux

    size = len(next(iter(weights.values())))
    terms, back, aux = jax.vjp(scaled, jnp.ones(size), has_aux=True)
    zeros = jax.tree.map(jnp.zeros_like, terms)
    one = jnp.float32(1)
    rows = {}
    for name, zero in zeros.items():
        (total_b,) = back(zeros | {name: Sum(one, zero.weight)})
        (weight_b,) = back(zeros | {name: Sum(zero.total, one)})
        rows[name] = replicated(jnp.stack([total_b, weight_b], axis=1))
    return terms, rows, aux


def by_target(experiment: Objective) -> Callable[[Params, Batch], jax.Array]:
    """(params, batch) -> the part of each of the batch's `weights` in the total of the loss.

    The total is linear in the weights, so it is the derivative by a factor of each of them.
    """

    def measure(params: Params, batch: Batch) -> jax.Array:
        def total(factor: jax.Array) -> Any:
            part = {**batch, "weights": batch["weights"] * factor}
            return experiment.loss(params, part, jax.random.key(0), False)["loss"].total

        return jax.grad(total)(jnp.ones(batch["weights"].shape))

    return measure


def replicated(rows: jax.Array) -> jax.Array:
    """Replicates an array over the current mesh, so that every process can read it."""
    if jax.sharding.get_abstract_mesh().empty:
        return rows
    return jax.lax.with_sharding_constraint(rows, jax.sharding.PartitionSpec())
