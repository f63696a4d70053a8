"""What JAX will compute on, told before it is loaded, for settings that are read even earlier."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path

ACCELERATORS = {
    ("nvidia[0-9]*", "dxg"): ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    ("accel[0-9]*", "vfio/[0-9]*"): ("libtpu",),
    ("kfd",): ("jax_rocm60_plugin", "jax_rocm7_plugin"),
}
"""Device files below /dev, and packages of which JAX needs one to use them: NVIDIA's, Google's, AMD's."""


def will_be_cpu(
    environment: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
    installed: Callable[[str], object] = importlib.util.find_spec,
) -> bool:
    """Whether JAX will compute on CPUs: because JAX_PLATFORMS says so, or because of no kind of accelerator
    both a device file and the package are there."""
    platforms = environment.get("JAX_PLATFORMS") or environment.get("JAX_PLATFORM_NAME")
    if platforms:
        return platforms.split(",")[0].strip() == "cpu"
    hidden = environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not any(
        any(next(devices.glob(file), None) for file in files) and any(map(installed, packages))
        for files, packages in ACCELERATORS.items()
        if not (hidden and "nvidia[0-9]*" in files)
    )
