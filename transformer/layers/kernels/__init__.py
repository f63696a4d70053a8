"""Ways to compute attention: the same function of the same inputs, at different costs."""

from collections.abc import Callable

import jax

from transformer.errors import UserError
from transformer.layers.kernels import unrolled as _unrolled
from transformer.layers.kernels.blockwise import blockwise
from transformer.layers.kernels.cached import cached
from transformer.layers.kernels.reference import reference
from transformer.layers.kernels.unrolled import unrolled
from transformer.layers.masks import Mask

KERNELS: dict[str, Callable[..., jax.Array]] = {
    "reference": reference,
    "unrolled": unrolled,
    "blockwise": blockwise,
}

LONG = 1024
"""Queries from which on the weights of all of them are not kept, where it is left to `choose`."""


def choose(kind: str, q_bthk: jax.Array, k_bsgk: jax.Array, *, mask: Mask) -> Callable[..., jax.Array]:
    """The kernel named `kind`, or for "auto" the fastest one that serves this mask and length.

    Queries that stand anywhere but at 0, 1, ... read a cache, which has a kernel of its own.

    Raises:
      UserError: an unknown kernel, or one that cannot serve, named with the reason.
    """
    if mask.query_indices_bt is not None and kind != "reference":
        return cached
    refusal = _unrolled.serves(q_bthk, k_bsgk, mask=mask)
    if kind == "auto":
        if mask.origins_b is not None and mask.pattern is not None and not mask.pattern.relative:
            return reference  # which blocks are seen is not known before the rows are
        if q_bthk.shape[1] >= LONG or (mask.pattern is not None and q_bthk.shape[1] > 1):
            return blockwise
        return reference if refusal else unrolled
    if kind not in KERNELS:
        raise UserError(f"kernel: {kind!r}; expected 'auto' or one of {', '.join(map(repr, KERNELS))}")
    if kind == "unrolled" and refusal:
        raise UserError(f"kernel: 'unrolled' cannot serve here: {refusal}; use 'auto' or 'blockwise'")
    return KERNELS[kind]
