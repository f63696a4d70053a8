"""Attention kernels: implementations of the same function with different costs."""

from collections.abc import Callable

import jax

from transformer.errors import UserError
from transformer.layers.devices import platform, sharded_over
from transformer.layers.kernels.base import Kernel
from transformer.layers.kernels.blockwise import BLOCKWISE, blockwise
from transformer.layers.kernels.cached import cached
from transformer.layers.kernels.cudnn import CUDNN, cudnn
from transformer.layers.kernels.reference import REFERENCE, Scoring, reference
from transformer.layers.kernels.ring import RING, ring
from transformer.layers.kernels.splash import SPLASH, splash
from transformer.layers.kernels.unrolled import UNROLLED, unrolled
from transformer.layers.masks import Mask

KERNELS: dict[str, Kernel] = {
    "ring": RING,
    "cudnn": CUDNN,
    "splash": SPLASH,
    "unrolled": UNROLLED,
    "blockwise": BLOCKWISE,
    "reference": REFERENCE,
}
"""Value of `model.kernel` -> kernel."""

FUSED = {"nvidia": ("cudnn",), "tpu": ("splash",)}
"""Platform -> fused kernels that "auto" tries first."""

MANY = 2**20
"""The number of pairs of a query and a key from which on "auto" uses `blockwise`."""

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
    """The kernel named `kind`, or for "auto" the fastest one that supports these inputs on this platform.

    Indices that are known only at run time are those of a decoding step, which always uses `cached`, unless
    "reference" is named. `v_bsgk` defaults to the keys.

    Raises:
      UserError: the kernel does not support the inputs, with the reason.
    """
    if not mask.is_static and kind != "reference":
        return cached
    if q_bthk.shape[1] == k_bsgk.shape[1] == 1:
        return reference  # initialisation of models, with a length that not every kernel supports
    v_bsgk = k_bsgk if v_bsgk is None else v_bsgk
    inputs = q_bthk, k_bsgk, v_bsgk, mask, scoring or Scoring(), dropout_rate
    for name in preferred(q_bthk.shape[1], k_bsgk.shape[1], mask) if kind == "auto" else (kind,):
        refusal = KERNELS[name].serves(*inputs)
        if not refusal:
            return KERNELS[name].attend
    raise UserError(f"kernel: {kind!r} does not support these inputs: {refusal}; use 'auto' or 'blockwise'")


def preferred(t: int, s: int, mask: Mask) -> tuple[str, ...]:
    """The kernels that "auto" tries for t queries and s keys, in order; the last one supports everything."""
    first = ("ring",) if sharded_over("length")[1] > 1 else FUSED.get(platform(), ())
    # Only the blockwise kernel skips what a pattern excludes.
    in_blocks = t * s >= MANY or (mask.pattern is not None and t > 1)
    return (*first, "blockwise" if in_blocks else "unrolled", "reference")
