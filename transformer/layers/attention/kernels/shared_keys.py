"""Attention of rows that share their keys, the beams of a prompt: keys are never moved."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SharedKeys(NamedTuple):
    """r adjacent rows that share their keys: at index s, row i of a group sees only the key of row
    `ancestors_mrs[i, s]`, as `Mask.ancestors_mrs`.

    The q queries of each row are multiplied with the keys of all r rows, p = r q, and the right products are
    selected: r times the products.
    """

    ancestors_mrs: jax.Array

    def to_all(self, x_bgqk: jax.Array) -> jax.Array:
        """Gives each row the queries of all rows of its group: (b, g, q, ...) -> (b, g, p, ...)."""
        (b, g, q, k), r = x_bgqk.shape, self.ancestors_mrs.shape[1]
        x_mgrqk = x_bgqk.reshape(b // r, r, g, q, k).swapaxes(1, 2)
        return jnp.repeat(x_mgrqk, r, axis=0).reshape(b, g, r * q, k)

    def own(self, x_bgps: jax.Array) -> jax.Array:
        """Sets to zero what is of a query and a key of a row that it does not see."""
        (b, _, p, s), r = x_bgps.shape, self.ancestors_mrs.shape[1]
        own_mars = self.ancestors_mrs[:, None] == jnp.arange(r)[:, None, None]
        own_bgps = jnp.repeat(own_mars, p // r, axis=2).reshape(b, 1, p, s)
        return jnp.where(own_bgps, x_bgps, 0.0)

    def from_all(self, x_bgpk: jax.Array) -> jax.Array:
        """Sums the results of each query over the r rows, in its own: (b, g, p, ...) -> (b, g, q, ...)."""
        (b, g, p, k), r = x_bgpk.shape, self.ancestors_mrs.shape[1]
        x_mgrqk = jnp.sum(x_bgpk.reshape(b // r, r, g, r, p // r, k), axis=1)
        return x_mgrqk.swapaxes(1, 2).reshape(b, g, p // r, k)
