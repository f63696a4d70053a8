"""Fused attention of cuDNN, for NVIDIA GPUs."""

import jax
import jax.numpy as jnp

from transformer.layers.devices import compute_capability, platform, sharded_over
from transformer.layers.kernels.base import Kernel
from transformer.layers.kernels.reference import Scoring, saved
from transformer.layers.masks import Mask
from transformer.layers.patterns import Window

HOPPER = 9
"""The compute capability of the GPUs for which the backward pass, too, takes heads up to 256 wide (the
support matrix of cuDNN 9.18); JAX checks that of the devices at hand."""

MOST = 2**28
"""The most entries of a materialised bias of the scores (1/2 GiB)."""


def cudnn(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
) -> jax.Array:
    """The same as `reference`, by `jax.nn.dot_product_attention`, for inputs that `serves` accepts.

    Causal masks and windows take no memory, and masked blocks are skipped. Segments, invalid keys and
    position biases become a bias array of the queries' type, quadratic in the length, with the precision of
    that type. Values narrower than the keys are padded with zeros, as JAX asks for both of one width.
    Source: Dao et al. 2022 (FlashAttention), as NVIDIA built it into cuDNN.
    """
    scoring = scoring or Scoring()
    (t, h), s = q_bthk.shape[1:3], k_bsgk.shape[1]
    q_bhtk, bias_bhts, allowed_bhts = q_bthk.swapaxes(1, 2), None, None
    if scoring.has("bias"):
        bias_bhts = scoring.finish(jnp.zeros((1, h, t, s)), q_bhtk).astype(q_bthk.dtype)
    if mask.key_segments_bs is not None or mask.key_valid_bs is not None:
        allowed_bhts = mask.dense(t, s)
    window = None if mask.pattern is None else (mask.pattern.size - 1, 0)  # type: ignore[attr-defined]
    out_bthk = jax.nn.dot_product_attention(
        scoring.queries(q_bhtk).swapaxes(1, 2),
        k_bsgk,
        jnp.pad(v_bsgk, ((0, 0), (0, 0), (0, 0), (0, k_bsgk.shape[-1] - v_bsgk.shape[-1]))),
        bias_bhts,
        allowed_bhts,
        scale=scoring.scale or None,
        is_causal=mask.causal,
        local_window_size=window,
        implementation="cudnn",
    )
    if allowed_bhts is not None:
        # Keys masked only by a large negative bias would share the weight of a query without allowed keys.
        out_bthk = jnp.where(jnp.any(allowed_bhts, axis=-1).swapaxes(1, 2)[..., None], out_bthk, 0)
    return saved(out_bthk[..., : v_bsgk.shape[-1]])


def serves(q_bthk, k_bsgk, v_bsgk, mask: Mask, scoring: Scoring, dropout_rate: float) -> str:
    """Why `cudnn` does not support these inputs; "" if it does."""
    (b, t, h, k), s = q_bthk.shape, k_bsgk.shape[1]
    biased = scoring.has("bias")
    added = biased or mask.key_segments_bs is not None or mask.key_valid_bs is not None
    if platform() != "nvidia":
        return f"it is for NVIDIA's GPUs, and this is {platform()}"
    if q_bthk.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes in bfloat16 or float16, not in {q_bthk.dtype}"
    widest = 256 if int(compute_capability()) == HOPPER else 128
    if k % 8 or k > widest or v_bsgk.shape[-1] > k:
        widths = f"heads are {k} wide, and values {v_bsgk.shape[-1]}"
        return f"{widths}; it takes multiples of 8 up to {widest}, and values at most as wide"
    if mask.pattern is not None and not (
        isinstance(mask.pattern, Window) and mask.pattern.dilation == 1 and mask.causal
    ):
        return f"of patterns it knows the causal window, not {mask.pattern}"
    if mask.start or (mask.causal and t != s):
        return "the queries do not stand where the keys do"
    if added and (t % 2 or s % 2):
        return f"lengths {t} and {s} must be even with a bias, segments or invalid keys"
    entries = b // sharded_over("batch")[1] * (h if biased else 1) * t * s
    if added and entries > MOST:
        array = f"biases of {t} x {s} in {b // sharded_over('batch')[1]} rows"
        return f"{array} would take {entries / 2**29:.1f} GiB in each layer; at most {MOST / 2**29:.1f}"
    if scoring.sinks_h is not None:
        return "it has no sinks"
    if scoring.soft_cap:
        return "it has no soft cap"
    if scoring.has("values"):
        return "it keeps no weights for the position to add values with"
    return "it has no dropout of weights" if dropout_rate else ""


CUDNN = Kernel(cudnn, serves)
