import os
import subprocess
import sys

import pytest

from tests import runs
from transformer.runtime import will_be_cpu

NVIDIA, GOOGLE, AMD = ("nvidia0", "jax_cuda12_plugin"), ("vfio/3", "libtpu"), ("kfd", "jax_rocm7_plugin")


@pytest.mark.parametrize(("file", "package"), [NVIDIA, GOOGLE, ("accel0", "libtpu"), AMD])
def test_an_accelerator_is_one_that_is_there_and_has_its_package(tmp_path, file, package):
    def cpu(packages, **environment):
        return will_be_cpu(environment, tmp_path, packages.__contains__)

    assert cpu([package])  # a wheel alone, as on the machine that compiles for others
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()  # which is there without a TPU
    (tmp_path / "nvidiactl").touch()
    assert cpu([package])
    (tmp_path / file).touch()
    assert cpu([])
    assert cpu(["libtpu" if package != "libtpu" else "jax_cuda12_plugin"])
    assert not cpu([package])
    assert cpu([package], JAX_PLATFORMS="cpu") and cpu([package], JAX_PLATFORMS="cpu,cuda")
    assert not cpu([package], JAX_PLATFORMS="")
    assert cpu([package], CUDA_VISIBLE_DEVICES="") == (file == "nvidia0")
    assert cpu([package], CUDA_VISIBLE_DEVICES="-1") == (file == "nvidia0")


def test_what_jax_platforms_says_is_so_without_a_device(tmp_path):
    for platforms in ("cuda", "tpu,cpu", "rocm"):
        assert not will_be_cpu({"JAX_PLATFORMS": platforms}, tmp_path, lambda name: None)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
@pytest.mark.parametrize(("platforms", "kept"), [("cpu", True), ("cuda", False)])
def test_malloc_keeps_memory_only_where_it_computes(platforms, kept):
    """`launch.py` starts again with malloc's settings; what it is asked for stays the same."""
    program = "import os; from transformer.runtime import restart_with_malloc; restart_with_malloc(); "
    program += "print('GLIBC_TUNABLES' in os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", program]
    options = {"cwd": runs.ROOT, "env": environment | {"JAX_PLATFORMS": platforms}, "timeout": 60}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert (done.returncode, done.stdout) == (0, f"{kept}\n"), done.stderr
