"""Attention kernels: implementations of the same function with different costs."""

from collections.abc import Callable

import jax

from transformer.devices import platform, sharded_over
from transformer.errors import UserError
from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.blockwise import BLOCKWISE, blockwise
from transformer.layers.attention.kernels.cached import cached
from transformer.layers.attention.kernels.cudnn import CUDNN, cudnn
from transformer.layers.attention.kernels.kernel_log import FUSED, log_kernel, logging_kernels
from transformer.layers.attention.kernels.reference import REFERENCE, reference
from transformer.layers.attention.kernels.ring import RING, ring, without
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.kernels.splash import SPLASH, splash
from transformer.layers.attention.kernels.unrolled import UNROLLED, unrolled
from transformer.layers.attention.masks import Mask

KERNELS: dict[str, Kernel] = {
    "ring": RING,
    "cudnn": CUDNN,
    "splash": SPLASH,
    "unrolled": UNROLLED,
    "blockwise": BLOCKWISE,
    "reference": REFERENCE,
}
"""Value of `model.kernel` -> kernel."""

BLOCKWISE_PAIRS = 2**20
"""The number of pairs of a query and a key from which on "auto" uses `blockwise`."""

__all__ = [
    "KERNELS",
    "Kernel",
    "blockwise",
    "cached",
    "choose",
    "cudnn",
    "logging_kernels",
    "reference",
    "ring",
    "splash",
    "unrolled",
]


def choose(
    kind: str,
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    place: str = "",
) -> Callable[..., jax.Array]:
    """The kernel named `kind`, or for "auto" the fastest one that supports these inputs on this platform.

    Indices that are known only at run time are those of a decoding step, which always uses `cached`, unless
    "reference" is named. With `place`, the name of the attention module, the choice is logged.

    Raises:
      UserError: the kernel does not support the inputs, with the reason.
    """
    if not mask.is_static and kind != "reference":
        return cached
    if q_bthk.shape[1] == k_bsgk.shape[1] == 1:
        return unrolled  # initialisation of models, with a length that not every kernel supports
    refusals: dict[str, str] = {}
    inputs = q_bthk, k_bsgk, v_bsgk, mask, scoring or Scoring(), dropout_rate
    for name in preferred(q_bthk.shape[1], k_bsgk.shape[1], mask) if kind == "auto" else (kind,):
        if not (refusal := KERNELS[name].serves(*inputs)):
            if place:
                log_kernel(name, place, refusals | (_in_ring(inputs) if name == "ring" else {}))
            return KERNELS[name].attend
        refusals[name] = refusal
    raise UserError(f"kernel: {kind!r} does not support these inputs: {refusal}; use 'auto' or 'blockwise'")


def _in_ring(inputs: tuple) -> dict[str, str]:
    """Why the fused kernels of this platform do not compute the blocks of `ring`."""
    refusals = without(*inputs)
    return {name: refusals[name] for name in FUSED.get(platform(), ()) if name in refusals}


def preferred(t: int, s: int, mask: Mask) -> tuple[str, ...]:
    """The kernels that "auto" tries for t queries and s keys, in order; the last one supports everything."""
    first = ("ring",) if sharded_over("length")[1] > 1 else FUSED.get(platform(), ())
    # Only the blockwise kernel skips what a pattern excludes.
    in_blocks = t * s >= BLOCKWISE_PAIRS or (mask.pattern is not None and t > 1)
    return (*first, "blockwise" if in_blocks else "unrolled", "reference")
