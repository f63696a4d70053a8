"""`Sum`: the type of every loss, metric and evaluation result."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Sum:
    """A total and its weight, such as a number of tokens: `+` merges, `.mean` divides.

    mean = (sum_i w_i x_i) / (sum_i w_i). Merging microbatches, hosts and evaluation batches of any size gives
    exactly the value of the whole: there is never a mean of means.
    """

    total: jax.Array | float
    weight: jax.Array | float

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)

    @property
    def mean(self) -> jax.Array | float:
        """total / weight; NaN if the weight is 0."""
        return self.total / self.weight if not _is_zero(self.weight) else float("nan")

    @classmethod
    def of(cls, values: jax.Array, weights: jax.Array | None = None) -> "Sum":
        """The weighted sum of `values` in float32; the default weights are 1."""
        values = jnp.asarray(values, jnp.float32)
        weights = jnp.ones_like(values) if weights is None else jnp.asarray(weights, jnp.float32)
        return cls(jnp.sum(values * weights), jnp.sum(jnp.broadcast_to(weights, values.shape)))


def named_terms(sown: Any) -> dict[str, Sum]:
    """Name -> `Sum` of the terms that modules sowed by `self.sow("terms", "balance", Sum.of(x))`, from the
    second result of `model.apply(..., mutable=["terms"])`.

    Terms of the same name are added, over layers too; `balance/i` is that of layer i. They have gradients,
    and are the same for scanned, unrolled and rematerialised layers; sowing them does not change the kernels.
    """
    terms: dict[str, Sum] = {}
    for path, term in jax.tree_util.tree_leaves_with_path(sown, is_leaf=lambda x: isinstance(x, Sum)):
        name = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)][-1]
        # terms / blocks / (the list of layers, one per call,) / layer / module ... / name / (one per call,)
        layers = [entry.idx for entry in path[:-1] if isinstance(entry, jax.tree_util.SequenceKey)]
        for key in (name, *(f"{name}/{layer}" for layer in layers[1:])):
            terms[key] = terms[key] + term if key in terms else term
    return terms


def _is_zero(weight: jax.Array | float) -> bool:
    return not isinstance(weight, jax.core.Tracer) and float(weight) == 0.0
