"""`Sum`: the only type of a loss, a metric and an evaluation result."""

from collections.abc import Iterable, Mapping

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


def _is_zero(weight: jax.Array | float) -> bool:
    return not isinstance(weight, jax.core.Tracer) and float(weight) == 0.0


def merge(parts: Iterable[Mapping[str, Sum]]) -> dict[str, Sum]:
    """Adds dictionaries of `Sum`s name by name; a name missing from some parts counts where it is."""
    merged: dict[str, Sum] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged
