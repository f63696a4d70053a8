"""Ways to compute attention: the same function of the same inputs, at different costs."""

from collections.abc import Callable

import jax

from transformer.errors import UserError
from transformer.layers.kernels.base import Kernel
from transformer.layers.kernels.blockwise import BLOCKWISE, blockwise
from transformer.layers.kernels.cached import cached
from transformer.layers.kernels.cudnn import CUDNN, cudnn
from transformer.layers.kernels.reference import REFERENCE, reference
from transformer.layers.kernels.ring import RING, ring
from transformer.layers.kernels.splash import SPLASH, splash
from transformer.layers.kernels.unrolled import UNROLLED, unrolled
from transformer.layers.masks import Mask
from transformer.layers.scores import Scoring

KERNELS: dict[str, Kernel] = {
    "ring": RING,
    "cudnn": CUDNN,
    "splash": SPLASH,
    "unrolled": UNROLLED,
    "blockwise": BLOCKWISE,
    "reference": REFERENCE,
}
"""By the name that `model.kernel` gives, in the order in which "auto" tries them."""

__all__ = [
    "KERNELS",
    "Kernel",
    "blockwise",
    "cached",
    "choose",
    "cudnn",
    "reference",
    "ring",
    "splash",
    "unrolled",
]


def choose(
    kind: str,
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array | None = None,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
) -> Callable[..., jax.Array]:
    """The kernel named `kind`, or for "auto" the fastest one that serves these inputs where they are.

    Queries that stand anywhere but at 0, 1, ... read a cache, which has a kernel of its own. Values are as
    the keys where not given.

    Raises:
      UserError: an unknown kernel, or one that cannot serve, named with the reason.
    """
    if kind != "auto" and kind not in KERNELS:
        raise UserError(f"kernel: {kind!r}; expected 'auto' or one of {', '.join(map(repr, KERNELS))}")
    if mask.query_indices_bt is not None and kind != "reference":
        return cached
    if q_bthk.shape[1] == k_bsgk.shape[1] == 1:
        return reference  # what models are made from, and not every kernel takes
    v_bsgk = k_bsgk if v_bsgk is None else v_bsgk
    inputs = q_bthk, k_bsgk, v_bsgk, mask, scoring or Scoring(), dropout_rate
    if kind == "auto":
        kernels = KERNELS.values()
        return next(x.attend for x in kernels if x.suits(*inputs) and not x.serves(*inputs))
    if refusal := KERNELS[kind].serves(*inputs):
        raise UserError(f"kernel: {kind!r} cannot serve here: {refusal}; use 'auto' or 'blockwise'")
    return KERNELS[kind].attend
