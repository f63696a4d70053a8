"""Model FLOPs per token and peak FLOP/s of devices, for model FLOPs utilisation (MFU)."""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from transformer.training.optim.rules import ParameterSettings, parameter_settings
from transformer.training.state import Params

PEAK_FLOPS: dict[str, tuple[float, float]] = {
    # NVIDIA: dense tensor-core rates of bfloat16 and of TF32, which is what JAX multiplies float32 with.
    "NVIDIA A100": (312e12, 156e12),  # A100 data sheet, 2021
    "NVIDIA H100": (989.4e12, 494.7e12),  # H100 architecture white paper, table 2, SXM5
    "NVIDIA H100 PCIe": (756e12, 378e12),  # same, PCIe
    "NVIDIA H100 NVL": (835.5e12, 417.5e12),  # H100 data sheet
    "NVIDIA H200": (989.4e12, 494.7e12),  # H200 data sheet, SXM; the H100's chip
    "NVIDIA H200 NVL": (835.5e12, 417.5e12),  # same, NVL
    "NVIDIA GH200": (989.4e12, 494.7e12),  # GH200 data sheet; the H100's chip
    "NVIDIA B200": (2250e12, 1125e12),  # HGX B200 data sheet, per GPU
    "NVIDIA GB200": (2500e12, 1250e12),  # GB200 NVL72 data sheet, per GPU
    "NVIDIA B300": (2250e12, 1125e12),  # HGX B300 data sheet, per GPU
    "NVIDIA GB300": (2500e12, 1250e12),  # GB300 NVL72 data sheet, per GPU
    "NVIDIA GeForce RTX 3090": (71e12, 35.6e12),  # GA102 architecture white paper, appendix A
    "NVIDIA GeForce RTX 4090": (165.2e12, 82.6e12),  # Ada architecture white paper, appendix A
    # Google: cloud.google.com/tpu/docs, system architecture, per chip; a chip of TPU7x is two devices. The
    # default precision multiplies float32 in one bfloat16 pass, at the same rate.
    "TPU v4": (275e12, 275e12),
    "TPU v5": (459e12, 459e12),  # v5p
    "TPU v5p": (459e12, 459e12),
    "TPU v5 lite": (197e12, 197e12),  # v5e
    "TPU v5e": (197e12, 197e12),
    "TPU v6 lite": (918e12, 918e12),  # v6e
    "TPU v6e": (918e12, 918e12),
    "TPU7x": (2307e12 / 2, 2307e12 / 2),  # Ironwood
}
"""Prefix of `device_kind` -> peak FLOP/s of one device in (bfloat16, float32); the longest prefix applies."""


def peak_flops(devices: Sequence[jax.Device], dtype: str) -> float | None:
    """Peak FLOP/s of all `devices`, which are of one kind, for products in `dtype`; None if unknown, as for
    CPUs."""
    peak = peak_of_kind(devices[0].device_kind, dtype)
    return len(devices) * peak if peak else None


def peak_of_kind(device_kind: str, dtype: str) -> float:
    """Peak FLOP/s of one device of a kind; 0 if unknown."""
    known = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
    halves, float32 = PEAK_FLOPS[max(known, key=len)] if known else (0.0, 0.0)
    return halves if dtype in ("bfloat16", "float16") else float32


def run_flops_per_token(run: Any) -> float:
    """FLOPs of training a `Run` on one token: those of its experiment, less the gradients of what is frozen,
    2 for each parameter that a token is multiplied with. Only what is trained needs them."""
    params, count = run.abstract.params, run.experiment.flops_per_token

    def trained(settings: ParameterSettings, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        layers = np.broadcast_to(~np.asarray(settings.frozen), leaf.shape[:1] + (1,) * (leaf.ndim - 1))
        return jax.ShapeDtypeStruct((int(layers.sum()), *leaf.shape[1:]), leaf.dtype)

    settings = parameter_settings(params, run.config.optimizer, run.layers, run.roles)
    return count(params) - (count(params) - count(jax.tree.map(trained, settings, params))) / 3


READS = re.compile(r"encoder|attention/key/|.*cross_attention/(key|value|latent|rotary_key)/")
"""Matches the names of an encoder-decoder's parameters that source tokens are multiplied with."""


def matmul_parameters(params: Params, expert_share: float = 1.0) -> float:
    """The number of parameters that a token is multiplied with: the kernels, those of experts times the
    share that compute it, and the embedding table if it is tied to the output (there is no `unembedding`);
    the look-up costs nothing."""
    sizes = _active_sizes(params, expert_share)
    kernels = sum(size for name, size in sizes.items() if name.endswith("kernel"))
    tied = not any(name.startswith("unembedding/") for name in sizes)
    return kernels + (sizes.get("embedding/table", 0) if tied else 0)


def train_flops_per_token(parameters: float, products: float = 0.0) -> float:
    """6 (N + A): FLOPs of training on one token, forward and backward.

    N `matmul_parameters`, A `attention_products` of the token: 2 n (h k) t in n layers of full attention with
    h heads of width k over t tokens. Rematerialisation is not counted. Source: Chowdhery et al. 2022, "PaLM",
    appendix B.
    """
    return 6.0 * (parameters + products)


def pair_flops_per_token(
    params: Params, products: float, source_length: int, target_length: int, expert_share: float = 1.0
) -> float:
    """6 (N_t + N_s s / t + A): FLOPs of training an encoder-decoder on one target token, in rows of t target
    and s source tokens.

    N_s is the number of parameters that source tokens are multiplied with (`READS`), N_t that of all others,
    and A the products of attention for a target token, s / t source tokens among them.
    """
    sizes = _active_sizes(params, expert_share)
    read = sum(size for name, size in sizes.items() if name.endswith("kernel") and READS.match(name))
    parameters = matmul_parameters(params, expert_share) - read + read * source_length / target_length
    return 6.0 * (parameters + products)


def _active_sizes(params: Params, expert_share: float) -> dict[str, float]:
    sizes = sizes_of(params)
    return {name: size * (expert_share if "/experts/" in name else 1) for name, size in sizes.items()}


def sizes_of(params: Params) -> dict[str, int]:
    """The number of elements of each parameter by its name."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
