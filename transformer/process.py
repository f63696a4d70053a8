"""What a process settles before JAX computes anything, in a notebook as `launch.py` does at a terminal."""

import ctypes
import os
import sys
import warnings
from pathlib import Path

from transformer.backend import will_be_cpu

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Numbers of glibc's settings (malloc.h)."""


def keep_programs() -> None:
    """Keeps compiled programs in `~/.cache/transformer/xla`, also where JAX is loaded already, unless the
    environment or JAX's own config says where."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "transformer", "xla")
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",  # 1 would skip most of a CPU's
    }
    new = {name: value for name, value in settings.items() if name not in os.environ}
    jax = sys.modules.get("jax")
    if jax is None:
        os.environ |= new
    elif jax.config.jax_compilation_cache_dir is None:
        from jax.experimental.compilation_cache import compilation_cache

        for name, value in new.items():
            jax.config.update(name.lower(), float(value) if name.endswith("SECS") else value)
        compilation_cache.reset_cache()  # which may have found already that there was none


def keep_memory() -> bool:
    """Makes malloc keep what is freed, in one heap for all threads, where JAX computes on a CPU: what
    `launch.MALLOC` does for a program that can start anew, without the large pages. Whether it is so now.

    Warns where it comes too late: the threads that compute have heaps of their own by then.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt") or not will_be_cpu():
        return False
    if "GLIBC_TUNABLES" in os.environ:
        return "malloc" in os.environ["GLIBC_TUNABLES"]
    if _computing():
        warnings.warn(
            "JAX has computed already, so that steps on a CPU will take longer: call experiments.notebook "
            "before anything is computed, or start Jupyter with GLIBC_TUNABLES as in launch.MALLOC",
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
