"""Fused attention for TPUs that skips masked blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

from transformer.devices import platform, sharded_over
from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.scores import SAVED, Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Window
from transformer.layers.attention.positions.alibi import Alibi, slopes
from transformer.layers.attention.whole_heads import repeated

BLOCKS = (512, 256, 128)
"""Block sizes of queries and keys; the first that divides the padded lengths is used."""

WIDTH = 64
"""Heads are padded with zeros to multiples of it; a TPU's products of narrower ones take as long."""

DIGIT = 256
"""The integers up to it are exact in bfloat16."""


def splash(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
) -> jax.Array:
    """The same as `reference`, by the Pallas kernel of JAX, for inputs that `serves` accepts.

    With several devices each runs it on its rows of the batch and its heads. Queries and keys are padded to
    whole blocks, and heads to whole multiples of `WIDTH`. The biases of ALiBi are products of a few more
    columns of queries and keys.
    Source: Dao et al. 2022 (FlashAttention); the kernel of JAX, `splash_attention`.
    """
    scoring, k_bsgk, v_bsgk = scoring or Scoring(), repeated(k_bsgk), repeated(v_bsgk)
    (b, t), s = q_bthk.shape[:2], k_bsgk.shape[1]

    def attend(
        q_bhtk: jax.Array,
        k_bgsk: jax.Array,
        v_bgsk: jax.Array,
        ids: kernels.SegmentIds | None,
        sinks_h: jax.Array | None,
    ) -> jax.Array:
        kernel: Any = make_kernel(q_bhtk.shape[1], t, s, mask, scoring, residual_checkpoint_name=SAVED)
        return jax.vmap(kernel, (0, 0, 0, 0, None))(q_bhtk, k_bgsk, v_bgsk, ids, sinks_h)

    rows, columns = sharded_over("batch")[0] or None, sharded_over("heads")[0] or None
    if rows or columns:
        part = PartitionSpec(rows, columns)
        specs = part, part, part, PartitionSpec(rows), PartitionSpec(columns)
        attend = jax.shard_map(attend, in_specs=specs, out_specs=part, check_vma=False)
    q_bthk, k_bsgk = factors(q_bthk, k_bsgk, scoring)
    q_bhtk, k_bgsk, whole_v_bgsk = (padded(x.swapaxes(1, 2)) for x in (q_bthk, k_bsgk, v_bsgk))
    out_bhtk = attend(q_bhtk, k_bgsk, whole_v_bgsk, make_ids(mask, b, t, s), scoring.sinks_h)
    out_bhtk = out_bhtk[:, :, :t, : v_bsgk.shape[-1]]
    if _marked(mask):  # the output of a query without keys is undefined
        out_bhtk = jnp.where(jnp.any(mask.dense(t, s), axis=-1, keepdims=True), out_bhtk, 0)
    return out_bhtk.swapaxes(1, 2).astype(q_bthk.dtype)


def serves(q_bthk, k_bsgk, v_bsgk, mask: Mask, scoring: Scoring, dropout_rate: float) -> str:
    """Why `splash` does not support these inputs; "" if it does."""
    (b, _, h, _), g = q_bthk.shape, repeated(k_bsgk).shape[2]
    rows, columns = sharded_over("batch")[1], sharded_over("heads")[1]
    if platform() != "tpu":
        return f"it is for TPUs, and this is {platform()}"
    if b % rows or h % columns or g % columns:
        return f"{b} rows, {h} heads or {g} key heads cannot be cut over {rows} x {columns} devices"
    if mask.counts_positions or mask.seeds_d is not None:
        return "which blocks its pattern sees is not known before the rows are"
    alibi = isinstance(scoring.position, Alibi)
    if (scoring.has("bias") and not alibi) or scoring.has("values"):
        return "its scores and weights are not there for the position to add to"
    if alibi and (not mask.causal or scoring.soft_cap or scoring.sinks_h is not None):
        return "it has ALiBi only under a causal mask, without a soft cap or sinks"
    return "it has no dropout of weights" if dropout_rate else ""


def make_kernel(
    h: int, t: int, s: int, mask: Mask, scoring: Scoring, **options: Any
) -> kernels.SplashAttentionKernel:
    """The kernel of JAX for one row, with this mask of whole blocks."""
    whole_t, whole_s = whole(t), whole(s)
    return kernels.make_splash_mha(
        masks.MultiHeadMask([_static(mask, whole_t, whole_s)] * h),
        block_sizes=_sizes(whole_t, whole_s),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=scoring.soft_cap or None,
        **options,
    )


def factors(q_bthk: jax.Array, k_bsgk: jax.Array, scoring: Scoring) -> tuple[jax.Array, jax.Array]:
    """Queries and keys whose products are the scores, before a soft cap."""
    scale = scoring.scale or q_bthk.shape[-1] ** -0.5
    q_bhtk = scoring.queries(q_bthk.swapaxes(1, 2)) * jnp.asarray(scale, q_bthk.dtype)
    if scoring.has("bias"):
        q_bhtk, k_bgsk = _with_distances(q_bhtk, k_bsgk.swapaxes(1, 2), scoring)
        return q_bhtk.swapaxes(1, 2), k_bgsk.swapaxes(1, 2)
    return q_bhtk.swapaxes(1, 2), k_bsgk


def make_ids(mask: Mask, b: int, t: int, s: int) -> kernels.SegmentIds | None:
    """Segment ids, of whole blocks, that are equal for a query and the keys that it may attend to; None if
    the kernel's own mask is enough."""
    whole_t, whole_s = whole(t), whole(s)
    # Causality hides the padding of keys if it comes after the last query.
    if not _marked(mask) and (whole_s == s or (mask.causal and mask.start + t <= s)):
        return None

    def numbers(x_bt: jax.Array | None, length: int) -> jax.Array:
        return jnp.broadcast_to(jnp.zeros((1, 1), jnp.int32) if x_bt is None else x_bt, (b, length))

    mask = mask.pad(t, s, whole_t, whole_s)
    keys_bs = numbers(mask.key_segments_bs, whole_s)
    if mask.key_valid_bs is not None:
        keys_bs = jnp.where(mask.key_valid_bs, keys_bs, jnp.iinfo(jnp.int32).min)
    return kernels.SegmentIds(numbers(mask.query_segments_bt, whole_t), keys_bs)


def whole(length: int) -> int:
    """The length of whole blocks."""
    return -length % BLOCKS[-1] + length


def padded(x_bgsk: jax.Array) -> jax.Array:
    """The array with zeros up to whole blocks, and up to a whole width."""
    s, k = x_bgsk.shape[2:]
    return jnp.pad(x_bgsk, ((0, 0), (0, 0), (0, whole(s) - s), (0, -k % WIDTH)))


def _marked(mask: Mask) -> bool:
    return mask.key_segments_bs is not None or mask.key_valid_bs is not None


def _static(mask: Mask, t: int, s: int) -> masks.Mask:
    if mask.pattern is None:
        return masks.CausalMask((t, s), offset=mask.start) if mask.causal else masks.FullMask((t, s))
    if isinstance(mask.pattern, Window) and mask.pattern.dilation == 1:
        before = mask.pattern.size - 1
        return masks.LocalMask((t, s), (before, 0 if mask.causal else before), offset=mask.start)
    i, j = mask.start + np.arange(t)[:, None], np.arange(s)[None]
    seen = np.broadcast_to(mask.pattern(i, j), (t, s))
    return masks.NumpyMask(seen & (j <= i) if mask.causal else seen)


def _with_distances(q_bhtk: jax.Array, k_bgsk: jax.Array, scoring: Scoring) -> tuple[jax.Array, jax.Array]:
    """Queries and keys with more columns, whose products are slope_h (j - first) for a key at position j.

    That is ALiBi's bias -slope_h (i - j) of the keys up to the query at i, but for a number of each query,
    which the softmax cancels. All columns are exact in bfloat16: the slopes as sums of three numbers, and the
    distances as three digits.
    """
    assert scoring.query_positions_bt is not None and scoring.key_positions_bs is not None
    distance_bs = scoring.key_positions_bs - scoring.query_positions_bt[:, :1]
    digits = distance_bs // DIGIT**2, distance_bs // DIGIT % DIGIT, distance_bs % DIGIT
    rest_h, parts = np.array(slopes(q_bhtk.shape[1])), []
    for _ in range(3):
        parts.append(rest_h.astype(jnp.bfloat16).astype(float))
        rest_h = rest_h - parts[-1]
    slope_hc = np.stack([part * DIGIT**power for power in (2, 1, 0) for part in parts], axis=-1)
    place_bsc = jnp.repeat(jnp.stack(digits, axis=-1), len(parts), axis=-1)

    def beside(x: jax.Array, columns: jax.Array) -> jax.Array:
        more = jnp.broadcast_to(columns, (*x.shape[:-1], columns.shape[-1]))
        return jnp.concatenate([x, more.astype(x.dtype)], axis=-1)

    return beside(q_bhtk, jnp.asarray(slope_hc)[:, None]), beside(k_bgsk, place_bsc[:, None])


def _sizes(t: int, s: int) -> kernels.BlockSizes:
    size = next(size for size in BLOCKS if t % size == 0 and s % size == 0)
    names = [f"block_{axis}{name}" for name in ("", "_dkv", "_dq") for axis in ("q", "kv")]
    sizes: Any = dict.fromkeys([*names, "block_kv_compute", "block_kv_dkv_compute"], size)
    return kernels.BlockSizes(**sizes)


SPLASH = Kernel(splash, serves)
