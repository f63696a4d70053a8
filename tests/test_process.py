"""What is settled before JAX computes, each in a process of its own."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests import runs

FAULTS = """
    import ctypes, resource
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            place = libc.malloc(32 << 20)
            ctypes.memset(place, 1, 32 << 20)
            libc.free(place)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""


def printed(code: str, cache, **environment: str) -> tuple[list[str], str]:
    ours = ("GLIBC_TUNABLES", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FAULTS) + textwrap.dedent(code)],
        cwd=runs.ROOT,
        env=inherited | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cache)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_a_notebook_keeps_programs_and_memory(tmp_path):
    """Though JAX is loaded already, and what it compiles is found by the next one."""
    code = """
        import jax
        from transformer import runtime
        before = faults()
        runtime.keep_programs()
        least = "jax_persistent_cache_min_compile_time_secs"
        found = jax.config.jax_compilation_cache_dir, getattr(jax.config, least)
        print(runtime.keep_memory(), before, faults(), *found)
        jax.config.update(least, 0.0)  # so that a fast machine keeps it too
        jax.jit(lambda x: jax.numpy.linalg.svd(x @ x.T))(jax.numpy.ones((300, 300)))
    """
    (kept, before, after, folder, least), error = printed(code, tmp_path)
    assert kept == "True" and "warn" not in error.lower()
    assert int(before) > 40_000 and int(after) < 10_000, "the first piece alone is taken again"
    assert folder == str(tmp_path / "transformer" / "xla") and os.listdir(folder)
    assert float(least) == 0.1


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_what_the_environment_says_stays_and_what_comes_too_late_is_said(tmp_path):
    code = """
        import jax
        from transformer import runtime
        jax.numpy.ones(3).sum().block_until_ready()
        runtime.keep_programs()
        print(runtime.keep_memory(), jax.config.jax_compilation_cache_dir)
    """
    out, error = printed(code, tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
    assert out == ["False", str(tmp_path / "mine")] and error.count("JAX has computed already") == 1
