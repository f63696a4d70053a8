"""Ways to compute attention: the same function of the same inputs, at different costs."""

from collections.abc import Callable

import jax

from transformer.errors import UserError
from transformer.layers.kernels.reference import reference
from transformer.layers.masks import Mask

KERNELS: dict[str, Callable[..., jax.Array]] = {"reference": reference}


def choose(
    kind: str, q_bthk: jax.Array, k_bsgk: jax.Array, *, mask: Mask, bias: jax.Array | None = None
) -> Callable[..., jax.Array]:
    """The kernel named `kind`, or for "auto" the fastest one that serves this mask and bias."""
    if kind == "auto":
        return reference
    if kind not in KERNELS:
        raise UserError(f"kernel: {kind!r}; expected 'auto' or one of {', '.join(map(repr, KERNELS))}")
    return KERNELS[kind]
