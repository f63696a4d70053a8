"""Model FLOPs per token and peak FLOP/s of devices, for model FLOPs utilisation (MFU)."""

import math
import re
from collections.abc import Sequence

import jax

from transformer.training.checkpoint import Params

PEAK_FLOPS: dict[str, tuple[float, float]] = {
    # NVIDIA: dense tensor-core rates of bfloat16 and of TF32, which is what JAX multiplies float32 with.
    "NVIDIA A100": (312e12, 156e12),  # A100 data sheet, 2021
    "NVIDIA H100": (989.4e12, 494.7e12),  # H100 architecture white paper, table 2, SXM5
    "NVIDIA H100 PCIe": (756e12, 378e12),  # same, PCIe
    "NVIDIA H200": (989.4e12, 494.7e12),  # H200 data sheet; the H100's chip
    "NVIDIA B200": (2250e12, 1125e12),  # HGX B200 data sheet, per GPU
    "NVIDIA GB200": (2500e12, 1250e12),  # GB200 NVL72 data sheet, per GPU
    "NVIDIA GeForce RTX 3090": (71e12, 35.6e12),  # GA102 architecture white paper, appendix A
    "NVIDIA GeForce RTX 4090": (165.2e12, 82.6e12),  # Ada architecture white paper, appendix A
    # Google: cloud.google.com/tpu/docs, system architecture, per chip. The default precision multiplies
    # float32 in one bfloat16 pass, at the same rate.
    "TPU v4": (275e12, 275e12),
    "TPU v5": (459e12, 459e12),  # v5p
    "TPU v5p": (459e12, 459e12),
    "TPU v5 lite": (197e12, 197e12),  # v5e
    "TPU v5e": (197e12, 197e12),
    "TPU v6 lite": (918e12, 918e12),  # v6e
    "TPU v6e": (918e12, 918e12),
}
"""Prefix of `device_kind` -> peak FLOP/s of one device in (bfloat16, float32); the longest prefix applies."""


def peak_flops(devices: Sequence[jax.Device], dtype: str) -> float | None:
    """Peak FLOP/s of all `devices`, which are of one kind, for products in `dtype`; None if unknown, as for
    CPUs."""
    device_kind = devices[0].device_kind
    known = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
    if not known:
        return None
    bfloat16, float32 = PEAK_FLOPS[max(known, key=len)]
    return len(devices) * (bfloat16 if dtype == "bfloat16" else float32)


READS = re.compile(r"encoder|attention/key/|.*cross_attention/(key|value|latent|rotary_key)/")
"""Matches the names of an encoder-decoder's parameters that source tokens are multiplied with."""


def matmul_parameters(params: Params) -> int:
    """The number of parameters that tokens are multiplied with: the kernels, and the embedding table if it is
    tied to the output (there is no `unembedding`); the look-up costs nothing."""
    sizes = _sizes(params)
    kernels = sum(size for name, size in sizes.items() if name.endswith("kernel"))
    tied = not any(name.startswith("unembedding/") for name in sizes)
    return kernels + (sizes.get("embedding/table", 0) if tied else 0)


def train_flops_per_token(parameters: int, num_layers: int, attention_width: int, length: int) -> float:
    """6 N + 12 n (h k) t: FLOPs of training on one token, forward and backward.

    N `matmul_parameters`, n layers, h k = heads x head width, t tokens of context. Rematerialisation is not
    counted, and the masked half of causal attention is not deducted, by the convention of Chowdhery et al.
    2022, "PaLM", appendix B.
    """
    return 6.0 * parameters + 12.0 * num_layers * attention_width * length


def pair_flops_per_token(
    params: Params, layers: tuple[int, int, int], width: int, source_length: int, target_length: int
) -> float:
    """6 (N_t + N_s s / t) + 12 h k (n_t t + n_s s^2 / t + n_c s): FLOPs of training an encoder-decoder on one
    target token, in rows of t target and s source tokens.

    N_s is the number of parameters that source tokens are multiplied with (`READS`), N_t that of all others;
    `layers`, n_s n_t n_c, are the layers of source self-attention, target self-attention and cross-attention;
    `width` is h k. Attention is counted as in `train_flops_per_token`.
    """
    read = sum(size for name, size in _sizes(params).items() if name.endswith("kernel") and READS.match(name))
    shares = source_length / target_length
    of_sources, of_targets, across = layers
    attended = of_targets * target_length + (of_sources * shares + across) * source_length
    return 6.0 * (matmul_parameters(params) - read + read * shares) + 12.0 * width * attended


def _sizes(params: Params) -> dict[str, int]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
