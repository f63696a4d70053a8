"""Ways to compute attention: the same function of the same inputs, at different costs."""

from collections.abc import Callable

import jax

from transformer.errors import UserError
from transformer.layers.kernels import blockwise as _blockwise
from transformer.layers.kernels.blockwise import blockwise
from transformer.layers.kernels.cached import cached
from transformer.layers.kernels.reference import reference
from transformer.layers.masks import Mask

KERNELS: dict[str, Callable[..., jax.Array]] = {"reference": reference, "blockwise": blockwise}


def choose(kind: str, q_bthk: jax.Array, k_bsgk: jax.Array, *, mask: Mask) -> Callable[..., jax.Array]:
    """The kernel named `kind`, or for "auto" the fastest one that serves this mask.

    Queries that stand anywhere but at 0, 1, ... read a cache, which has a kernel of its own.

    Raises:
      UserError: an unknown kernel, or one that cannot serve, named with the reason.
    """
    if mask.query_indices_bt is not None and kind != "reference":
        return cached
    refusal = _blockwise.serves(q_bthk, k_bsgk, mask=mask)
    if kind == "auto":
        return reference if refusal else blockwise
    if kind not in KERNELS:
        raise UserError(f"kernel: {kind!r}; expected 'auto' or one of {', '.join(map(repr, KERNELS))}")
    if kind == "blockwise" and refusal:
        raise UserError(f"kernel: 'blockwise' cannot serve here: {refusal}; use 'auto' or 'reference'")
    return KERNELS[kind]
