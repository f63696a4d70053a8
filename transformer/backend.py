"""Which backend JAX will use, determined before JAX is imported."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path

ACCELERATORS = {
    ("nvidia[0-9]*", "dxg"): ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    ("accel[0-9]*", "vfio/[0-9]*"): ("libtpu",),
    ("kfd",): ("jax_rocm60_plugin", "jax_rocm7_plugin"),
}
"""Device files below /dev -> packages of which JAX needs one to use them, for NVIDIA, Google and AMD."""


def will_be_cpu(
    environment: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
    installed: Callable[[str], object] = importlib.util.find_spec,
) -> bool:
    """Whether JAX will compute on CPUs: JAX_PLATFORMS says so, or no accelerator has both a device file and a
    package."""
    platforms = environment.get("JAX_PLATFORMS") or environment.get("JAX_PLATFORM_NAME")
    if platforms:
        return platforms.split(",")[0].strip() == "cpu"
    hidden = environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not any(
        any(next(devices.glob(file), None) for file in files) and any(map(installed, packages))
        for files, packages in ACCELERATORS.items()
        if not (hidden and "nvidia[0-9]*" in files)
    )
