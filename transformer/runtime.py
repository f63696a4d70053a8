"""Settings of the process that must precede JAX's first computation, and the platform that it will use:
environment, compilation cache, malloc."""

import ctypes
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "transformer")

ENVIRONMENT = {
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",  # 1 would skip most of a CPU's
    "TF_CPP_MIN_LOG_LEVEL": "2",  # XLA's warnings
}
"""Environment variables for JAX, set unless they are already."""

MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    ":glibc.malloc.mmap_threshold=1099511627776:glibc.malloc.trim_threshold=1099511627776"
}
"""Makes malloc keep freed memory, in one heap of 2 MB pages for all threads. XLA on a CPU allocates the
memory of each step with malloc; returning it to the system and mapping it again takes up to half of a
step."""

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt (malloc.h)."""


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


def keep_programs() -> None:
    """Sets the compilation cache of `ENVIRONMENT` for a JAX that is already imported, unless JAX's config or
    the environment sets one."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        settings = ENVIRONMENT | os.environ
        least = float(settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        jax.config.update("jax_compilation_cache_dir", settings["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        compilation_cache.reset_cache()  # it may already have been initialised without a folder


def restart_with_malloc() -> None:
    """Restarts this program with `MALLOC` in the environment, which glibc reads at start, unless it is set or
    JAX will not compute on a CPU."""
    if sys.platform == "linux" and not MALLOC.keys() & os.environ.keys() and will_be_cpu():
        os.execve(sys.executable, sys.orig_argv, os.environ | MALLOC)


def keep_memory() -> bool:
    """Makes malloc keep freed memory, in one heap for all threads, if JAX computes on a CPU; returns whether
    it does. As `restart_with_malloc`, but without a restart and without large pages.

    Warns if it comes too late, when JAX's threads already have their own heaps.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt") or not will_be_cpu():
        return False
    if "GLIBC_TUNABLES" in os.environ:
        return "malloc" in os.environ["GLIBC_TUNABLES"]
    if _computing():
        warnings.warn(
            "JAX has computed already, so that steps on a CPU will take longer: call workdir "
            "before anything is computed, or start Jupyter with the environment transformer.runtime.MALLOC",
            stacklevel=3,
        )
        return False
    # No separate mappings for large blocks, no trimming at the top, and no second heap.
    for setting, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)):
        if not libc.mallopt(setting, value):
            return False
    return True


def _computing() -> bool:
    """Whether JAX's compute threads exist."""
    names = Path("/proc/self/task").glob("*/comm")
    return any(name.read_text().startswith("tf_XLA") for name in names)
