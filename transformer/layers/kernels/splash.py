"""Fused attention for TPUs that skips masked blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

from transformer.layers.devices import platform, sharded_over
from transformer.layers.kernels.base import Kernel
from transformer.layers.kernels.reference import SAVED, Scoring
from transformer.layers.masks import Mask
from transformer.layers.patterns import Window

BLOCKS = (512, 256, 128)
"""Block sizes of queries and keys; the first that divides the padded lengths is used."""


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
    whole blocks.
    Source: Dao et al. 2022 (FlashAttention); the kernel of JAX, `splash_attention`.
    """
    scoring = scoring or Scoring()
    (b, t), s = q_bthk.shape[:2], k_bsgk.shape[1]
    scale = scoring.scale or q_bthk.shape[-1] ** -0.5
    marked = mask.key_segments_bs is not None or mask.key_valid_bs is not None
    whole_t, whole_s = (-length % BLOCKS[-1] + length for length in (t, s))

    def attend(
        q_bhtk: jax.Array,
        k_bgsk: jax.Array,
        v_bgsk: jax.Array,
        ids: kernels.SegmentIds | None,
        sinks_h: jax.Array | None,
    ) -> jax.Array:
        heads = masks.MultiHeadMask([_static(mask, whole_t, whole_s)] * q_bhtk.shape[1])
        kernel = kernels.make_splash_mha(
            heads,
            block_sizes=_sizes(whole_t, whole_s),
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=scoring.soft_cap or None,
            residual_checkpoint_name=SAVED,
        )
        return jax.vmap(kernel, (0, 0, 0, 0, None))(q_bhtk, k_bgsk, v_bgsk, ids, sinks_h)

    rows, columns = sharded_over("batch")[0] or None, sharded_over("heads")[0] or None
    if rows or columns:
        part = PartitionSpec(rows, columns)
        specs = part, part, part, PartitionSpec(rows), PartitionSpec(columns)
        attend = jax.shard_map(attend, in_specs=specs, out_specs=part, check_vma=False)
    q_bhtk = scoring.queries(q_bthk.swapaxes(1, 2)) * jnp.asarray(scale, q_bthk.dtype)
    padded, hidden = mask.pad(t, s, whole_t, whole_s), mask.causal and mask.start + t <= s
    # Causality hides the padding of keys if it comes after the last query.
    ids = _ids(padded, b, whole_t, whole_s) if marked or (whole_s > s and not hidden) else None
    k_bgsk, v_bgsk = (_lengthened(x.swapaxes(1, 2), whole_s) for x in (k_bsgk, v_bsgk))
    out_bhtk = attend(_lengthened(q_bhtk, whole_t), k_bgsk, v_bgsk, ids, scoring.sinks_h)[:, :, :t]
    if marked:  # the output of a query without keys is undefined
        out_bhtk = jnp.where(jnp.any(mask.dense(t, s), axis=-1, keepdims=True), out_bhtk, 0)
    return out_bhtk.swapaxes(1, 2).astype(q_bthk.dtype)


def serves(q_bthk, k_bsgk, v_bsgk, mask: Mask, scoring: Scoring, dropout_rate: float) -> str:
    """Why `splash` does not support these inputs; "" if it does."""
    (b, _, h, k), g = q_bthk.shape, k_bsgk.shape[2]
    rows, columns = sharded_over("batch")[1], sharded_over("heads")[1]
    if platform() != "tpu":
        return f"it is for TPUs, and this is {platform()}"
    if k % 64 or v_bsgk.shape[-1] % 64:
        return f"heads are {k} wide, and values {v_bsgk.shape[-1]}; it takes multiples of 64"
    if b % rows or h % columns or g % columns:
        return f"{b} rows, {h} heads or {g} key heads cannot be cut over {rows} x {columns} devices"
    if mask.counts_positions or mask.seeds_d is not None:
        return "which blocks its pattern sees is not known before the rows are"
    if scoring.has("bias") or scoring.has("values"):
        return "its scores and weights are not there for the position to add to"
    return "it has no dropout of weights" if dropout_rate else ""


def _static(mask: Mask, t: int, s: int) -> masks.Mask:
    if mask.pattern is None:
        return masks.CausalMask((t, s), offset=mask.start) if mask.causal else masks.FullMask((t, s))
    if isinstance(mask.pattern, Window) and mask.pattern.dilation == 1:
        before = mask.pattern.size - 1
        return masks.LocalMask((t, s), (before, 0 if mask.causal else before), offset=mask.start)
    i, j = mask.start + np.arange(t)[:, None], np.arange(s)[None]
    seen = np.broadcast_to(mask.pattern(i, j), (t, s))
    return masks.NumpyMask(seen & (j <= i) if mask.causal else seen)


def _ids(mask: Mask, b: int, t: int, s: int) -> kernels.SegmentIds:
    """Segment ids that are equal for a query and the keys that it may attend to."""

    def numbers(x_bt: jax.Array | None, length: int) -> jax.Array:
        return jnp.broadcast_to(jnp.zeros((1, 1), jnp.int32) if x_bt is None else x_bt, (b, length))

    keys_bs = numbers(mask.key_segments_bs, s)
    if mask.key_valid_bs is not None:
        keys_bs = jnp.where(mask.key_valid_bs, keys_bs, jnp.iinfo(jnp.int32).min)
    return kernels.SegmentIds(numbers(mask.query_segments_bt, t), keys_bs)


def _lengthened(x_bgsk: jax.Array, length: int) -> jax.Array:
    return jnp.pad(x_bgsk, ((0, 0), (0, 0), (0, length - x_bgsk.shape[2]), (0, 0)))


def _sizes(t: int, s: int) -> kernels.BlockSizes:
    size = next(size for size in BLOCKS if t % size == 0 and s % size == 0)
    names = [f"block_{axis}{name}" for name in ("", "_dkv", "_dq") for axis in ("q", "kv")]
    sizes: Any = dict.fromkeys([*names, "block_kv_compute", "block_kv_dkv_compute"], size)
    return kernels.BlockSizes(**sizes)


SPLASH = Kernel(splash, serves)
