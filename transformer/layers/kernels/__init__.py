"""Ways to compute attention: the same function of the same inputs, at different costs."""

from collections.abc import Callable

import jax

from transformer.errors import UserError
from transformer.layers.kernels import blockwise as _blockwise
from transformer.layers.kernels import cudnn as _cudnn
from transformer.layers.kernels import ring as _ring
from transformer.layers.kernels import splash as _splash
from transformer.layers.kernels import unrolled as _unrolled
from transformer.layers.kernels.blockwise import blockwise
from transformer.layers.kernels.cached import cached
from transformer.layers.kernels.cudnn import cudnn
from transformer.layers.kernels.reference import reference
from transformer.layers.kernels.ring import ring
from transformer.layers.kernels.splash import splash
from transformer.layers.kernels.unrolled import unrolled
from transformer.layers.masks import Mask
from transformer.layers.place import cut_over, platform
from transformer.layers.scoring import Scoring

KERNELS: dict[str, Callable[..., jax.Array]] = {
    "reference": reference,
    "unrolled": unrolled,
    "blockwise": blockwise,
    "ring": ring,
    "cudnn": cudnn,
    "splash": splash,
}

SERVES: dict[str, Callable[..., str]] = {
    "reference": lambda *_: "",
    "unrolled": _unrolled.serves,
    "blockwise": _blockwise.serves,
    "ring": _ring.serves,
    "cudnn": _cudnn.serves,
    "splash": _splash.serves,
}
"""Why each cannot serve (q, k, v, mask, scoring, dropout rate); nothing where it can."""

PREFERRED = {"nvidia": ["cudnn"], "tpu": ["splash"]}
"""By platform, what is tried before the kernels that run anywhere."""

LONG = 1024
"""Queries from which on the weights of all of them are not kept, where it is left to `choose`."""


def choose(
    kind: str,
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array | None = None,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
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
        t = q_bthk.shape[1]
        around = ["ring"] if cut_over("length")[1] > 1 else PREFERRED.get(platform(), [])
        anywhere = "blockwise" if t >= LONG or (mask.pattern is not None and t > 1) else "unrolled"
        return KERNELS[next(x for x in (*around, anywhere, "reference") if not SERVES[x](*inputs))]
    if refusal := SERVES[kind](*inputs):
        raise UserError(f"kernel: {kind!r} cannot serve here: {refusal}; use 'auto' or 'blockwise'")
    return KERNELS[kind]
