"""`Sum`: the only type of a loss, a metric and an evaluation result."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Sum:
    """A total with its weight (a token count, say): `+` merges exactly, `.mean` finishes.

    mean = (sum_i w_i x_i) / (sum_i w_i). Because both parts are kept, merging microbatches, hosts and
    evaluation batches of any size gives the value of the whole: nothing is ever a mean of means.
    """

    total: jax.Array | float
    weight: jax.Array | float

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)

    @property
    def mean(self) -> jax.Array | float:
        """total / weight; NaN where the weight is zero, since an empty mean has no value."""
        return self.total / self.weight if not _is_zero(self.weight) else float("nan")

    @classmethod
    def of(cls, values: jax.Array, weights: jax.Array | None = None) -> "Sum":
        """The weighted sum of `values` in float32, each counting once where no weights are given."""
        values = jnp.asarray(values, jnp.float32)
        weights = jnp.ones_like(values) if weights is None else jnp.asarray(weights, jnp.float32)
        return cls(jnp.sum(values * weights), jnp.sum(jnp.broadcast_to(weights, values.shape)))


def named_terms(sown: Any) -> dict[str, Sum]:
    """By name the `Sum`s that modules sowed by `self.sow("terms", "balance", Sum.of(x))`, from what
    `model.apply(..., mutable=["terms"])` returns beside the output.

    Those of one name are added up, over layers too; `balance/i` is layer i's alone. They have gradients, and
    are the same whether layers are scanned, unrolled or rematerialised; asking for them changes no kernel.
    """
    terms: dict[str, Sum] = {}
    for path, found in jax.tree_util.tree_leaves_with_path(sown, is_leaf=lambda x: isinstance(x, Sum)):
        name = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)][-1]
        # terms / blocks / (the list of layers, one per call,) / layer / module ... / name / (one per call,)
        layers = [entry.idx for entry in path[:-1] if isinstance(entry, jax.tree_util.SequenceKey)]
        for key in (name, *(f"{name}/{layer}" for layer in layers[1:])):
            terms[key] = terms[key] + found if key in terms else found
    return terms


def _is_zero(weight: jax.Array | float) -> bool:
    return not isinstance(weight, jax.core.Tracer) and float(weight) == 0.0
