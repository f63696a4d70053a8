"""What a process settles before JAX computes anything, in a notebook as `launch.py` does at a terminal."""

import ctypes
import os
import sys
import warnings
from pathlib import Path

from transformer.backend import will_be_cpu

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "transformer")

ENVIRONMENT = {
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",  # 1 would skip most of a CPU's
    "TF_CPP_MIN_LOG_LEVEL": "2",  # XLA's warnings
}
"""What JAX reads of the environment as it is loaded, where that does not say otherwise."""

MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    ":glibc.malloc.mmap_threshold=1099511627776:glibc.malloc.trim_threshold=1099511627776"
}
"""Makes malloc keep what is freed, in one heap for all threads, of pages of 2 MB. XLA on a CPU takes the
memory of each step anew from malloc; to give it back and map it in again is up to half of a step's time."""

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Numbers of glibc's settings (malloc.h)."""


def keep_programs() -> None:
    """Lets a JAX that has read the environment already keep compiled programs as `ENVIRONMENT` says, unless
    its own config or the environment says where."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        settings = ENVIRONMENT | os.environ
        least = float(settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        jax.config.update("jax_compilation_cache_dir", settings["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        compilation_cache.reset_cache()  # which may have found already that there was none


def restart_with_malloc() -> None:
    """Starts this program again with `MALLOC`, which is read before any of it runs, unless it is set, or the
    memory that a step takes is not the host's."""
    if sys.platform == "linux" and not MALLOC.keys() & os.environ.keys() and will_be_cpu():
        os.execve(sys.executable, sys.orig_argv, os.environ | MALLOC)


def keep_memory() -> bool:
    """Makes malloc keep what is freed, in one heap for all threads, where JAX computes on a CPU, and returns
    whether it does: as `restart_with_malloc`, without starting anew and without the large pages.

    Warns where it comes too late: the threads that compute have heaps of their own by then.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt") or not will_be_cpu():
        return False
    if "GLIBC_TUNABLES" in os.environ:
        return "malloc" in os.environ["GLIBC_TUNABLES"]
    if _computing():
        warnings.warn(
            "JAX has computed already, so that steps on a CPU will take longer: call commands.notebook "
            "before anything is computed, or start Jupyter with the environment transformer.process.MALLOC",
            stacklevel=3,
        )
        return False
    # No mappings of their own for large pieces, nothing given back at the top, and no second heap.
    for setting, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)):
        if not libc.mallopt(setting, value):
            return False
    return True


def _computing() -> bool:
    """Whether the threads that JAX computes with are there."""
    names = Path("/proc/self/task").glob("*/comm")
    return any(name.read_text().startswith("tf_XLA") for name in names)
