"""Splash attention to a part of the keys, whose outputs and gradients `ring` adds up."""

import inspect
import typing
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels

from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.kernels.splash import make_ids, make_kernel, padded
from transformer.layers.attention.kernels.splash import serves as splash_serves
from transformer.layers.attention.masks import Mask

OPTIONS = (
    "save_residuals",
    "mask_value",
    "is_mqa",
    "block_sizes",
    "residual_checkpoint_name",
    "mask_function",
    "attn_logits_soft_cap",
    "interpret",
)
"""The options of a kernel of JAX, which its backward pass takes before `res` and `do`."""

RESIDUALS = 9
"""The number of those that the backward pass takes."""


def serves(q_bthk, k_bsgk, v_bsgk, mask: Mask, scoring: Scoring, dropout_rate: float) -> str:
    """Why splash attention does not compute these inputs in parts of the keys; "" if it does.

    JAX exports no backward pass for the log-sum-exps of more keys, so its own may change.
    """
    refusal = splash_serves(q_bthk, k_bsgk, v_bsgk, mask, scoring, dropout_rate)
    function = getattr(kernels, "_splash_attention_bwd", None)
    parameters = inspect.signature(function).parameters if function else ()
    residuals = typing.get_args(getattr(kernels, "SplashResidualsType", None))
    known = (*parameters,) == (*OPTIONS, "res", "do") and len(residuals) == RESIDUALS
    return refusal or ("" if known else f"jax {jax.__version__} has not the backward pass of its parts")


def forward(_, q_bhtk, k_bgsk, v_bgsk, learned, fixed) -> tuple[jax.Array, jax.Array]:
    """The same as `blockwise.forward`, with scores that are the products of queries and keys."""
    (mask, scoring, _), (t, s) = fixed, (q_bhtk.shape[2], k_bgsk.shape[2])
    inputs = map(padded, (q_bhtk, k_bgsk, v_bgsk))
    attend = jax.vmap(_kernel(q_bhtk.shape[1], t, s, mask, scoring), (0, 0, 0, 0, None))
    out_bhtk, (norm_bht,) = attend(*inputs, make_ids(mask, len(q_bhtk), t, s), learned[1])
    norm_bht1 = norm_bht[:, :, :t, None]
    seen_bht1 = norm_bht1 > kernels.DEFAULT_MASK_VALUE / 2  # else there were no keys, or only masked ones
    out_bhtk = out_bhtk[:, :, :t, : v_bgsk.shape[-1]].astype(jnp.float32)
    return jnp.where(seen_bht1, out_bhtk, 0.0), jnp.where(seen_bht1, norm_bht1, -jnp.inf)


def backward(_, residuals, dout_bhtk):
    """The same as `blockwise.backward`: the share of these keys, but of the precision of the inputs."""
    q_bhtk, k_bgsk, v_bgsk, learned, (mask, scoring, _), out_bhtk, norm_bht1 = residuals
    (b, h, t), s = q_bhtk.shape[:3], k_bgsk.shape[2]
    kernel: Any = _kernel(h, t, s, mask, scoring)

    def of_row(ids, q_htk, k_gsk, v_gsk, out_htk, norm_ht1, dout_htk):
        infos = kernel.dq_mask_info, kernel.dkv_mask_info
        res = q_htk, k_gsk, v_gsk, ids, learned[1], out_htk, norm_ht1[..., 0], *infos
        return kernels._splash_attention_bwd(**kernel.kwargs, res=res, do=dout_htk)[3:]

    inputs = q_bhtk, k_bgsk, v_bgsk
    arrays = (padded(x) for x in (*inputs, out_bhtk, norm_bht1, dout_bhtk))
    *grads, _, dsinks_bh = jax.vmap(of_row)(make_ids(mask, b, t, s), *arrays)
    cut = (x[:, :, : like.shape[2], : like.shape[3]] for x, like in zip(grads, inputs, strict=True))
    dsinks_h = None if dsinks_bh is None else jnp.sum(dsinks_bh, axis=0)
    return *(x.astype(jnp.float32) for x in cut), (None, dsinks_h)


def _kernel(h: int, t: int, s: int, mask: Mask, scoring: Scoring) -> kernels.SplashAttentionKernel:
    return make_kernel(h, t, s, mask, scoring, save_residuals=True)
