"""Plans for GPUs and TPUs, compiled by the real compilers, where requirements-plan.txt is installed."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests import runs

pytestmark = pytest.mark.slow

KEYS = (
    "--config.model.d_model=256",
    "--config.model.d_ff=1024",
    "--config.model.num_heads=4",
    "--config.model.num_layers=4",
    "--config.model.max_length=512",
    "--config.model.attention_dropout=0",
    "--config.data.sequence_length=512",
    "--config.train.batch_size=64",
    "--config.parallel.mesh.data=2",
    "--config.parallel.mesh.fsdp=-1",
)
"""A small GPT-2 whose attention the kernels of the devices serve."""


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def plan(*flags):
    command = [sys.executable, "launch.py", "--mode=plan", *flags]
    return subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("topology", "devices", "kind", "kernel", "link"),
    [
        pytest.param("h100:1x8", 8, "NVIDIA H100", "cudnn", "NVLink", marks=needs("jax_cuda13_plugin")),
        pytest.param("h200:2x4", 8, "NVIDIA H200", "cudnn", "network", marks=needs("jax_cuda13_plugin")),
        pytest.param("b200:1x8", 8, "NVIDIA B200", "cudnn", "NVLink", marks=needs("jax_cuda13_plugin")),
        pytest.param("gb200:2x4", 8, "NVIDIA GB200", "cudnn", "network", marks=needs("jax_cuda13_plugin")),
        pytest.param("v5e:4x4", 16, "TPU v5", "splash", "ICI", marks=needs("libtpu")),
        pytest.param("tpu7x:2x2x1", 8, "TPU7x", "splash", "ICI", marks=needs("libtpu")),
    ],
)
def test_a_small_model(topology, devices, kind, kernel, link, tmp_path):
    out = tmp_path / "plan.json"
    found = plan("--config=configs/papers/gpt2.py", f"--topology={topology}", f"--output={out}", *KEYS)
    assert found.returncode == 0, found.stderr
    values = json.loads(out.read_text())
    assert (values["devices"], values["mesh"]) == (devices, {"data": 2, "fsdp": devices // 2})
    assert values["kind"].startswith(kind)
    assert f"attention: {kernel}" in found.stdout
    # Causal kernels leave out half of attention, of which MFU counts all.
    assert 0.75 < values["schedule"]["flops"] / values["model_flops"] < 1.05
    moved = values["schedule"]["moved"]
    assert link in {row["link"] for row in moved}
    gathered = sum(row["size"] for row in moved if row["operation"] in ("all-gather", "collective-permute"))
    kernels = 4 * 12 * 256**2 * 2  # bytes in bfloat16, without the embedding
    assert kernels < gathered < 4 * kernels + 2 * 4 * 256 * 50_257
    assert values["efficiency"] == (0.75 if kind.startswith("TPU") else 0.53)
    assert 0 < values["seconds"] < 1
    assert values["memory_total"] == sum(values["memory"].values())


@needs("jax_cuda13_plugin")
def test_packed_rows_too_large_for_a_bias_have_wide_heads():
    """As on a Hopper at hand, whose cuDNN takes heads of 128 with their segments in 16 more columns."""
    keys = ("model.d_model=128", "model.num_heads=1", "model.num_layers=1", "model.max_length=8192")
    large = ("data.sequence_length=8192", "train.batch_size=40", "loss.chunk_size=1024")
    more = (f"--config.{key}" for key in (*keys, *large))
    found = plan("--config=configs/papers/gpt2.py", "--topology=h100:1x8", *KEYS, *more)
    assert found.returncode == 0, found.stderr
    assert "attention: cudnn in blocks/attention\n" in found.stdout


@needs("jax_cuda13_plugin")
def test_what_does_not_fit_a_gpu():
    found = plan("--config=configs/papers/llama_70b.py", "--topology=h100:1x1", "--config.train.batch_size=1")
    assert found.returncode == 1, found.stderr
    assert "DOES NOT FIT" in found.stdout


@needs("libtpu")
def test_what_does_not_fit_a_tpu():
    found = plan("--config=configs/papers/llama_8b.py", "--topology=v5e:2x2", "--config.train.batch_size=4")
    assert found.returncode == 1, found.stderr
    assert "does not fit" in found.stdout


@needs("jax_cuda13_plugin")
def test_the_search_needs_fewer_devices_for_each_parameter_than_there_are():
    """A model that one GPU cannot hold without rematerialisation gets a mesh that divides it."""
    flags = ("--topology=h100:1x8", "--search", "--compile=2", "--config.train.batch_size=8")
    found = plan("--config=configs/papers/llama_8b.py", *flags)
    assert found.returncode == 0, found.stderr
    fastest = found.stdout.splitlines()[-1]
    assert fastest.startswith("fastest: --config.parallel.mesh.data=")
    assert "--config.parallel.mesh.fsdp=1 --config.parallel.mesh.tensor=1" not in fastest


@needs("libtpu")
def test_a_topology_that_does_not_exist():
    found = plan("--config=configs/papers/gpt2.py", "--topology=v5e:3x5")
    assert found.returncode == 2
    assert found.stderr.startswith("error: --topology: 'v5e:3x5':")
    assert found.stderr.count("\n") == 1


@needs("jax_cuda13_plugin")
def test_logits_in_bfloat16_are_read_and_written_in_half_the_bytes(tmp_path):
    traffic = {}
    for name in ("float32", "bfloat16"):
        out = tmp_path / f"{name}.json"
        keys = "--topology=h200:1x1", f"--output={out}", f"--config.model.logits_dtype={name}"
        planned = plan("--config=configs/papers/gpt2.py", *KEYS, "--config.parallel.mesh.data=1", *keys)
        assert planned.returncode == 0, planned.stderr
        traffic[name] = json.loads(out.read_text())["schedule"]["traffic"]
    # Once written and twice read, by the loss and its gradient, and the gradient written: 2 bytes less each.
    assert traffic["float32"] - traffic["bfloat16"] > 0.9 * 4 * 2 * 64 * 512 * 50_257


@needs("jax_cuda13_plugin")
def test_what_scanned_layers_save_is_not_filled_with_zeros_first(tmp_path):
    option = "--config.parallel.compiler_options.xla_gpu_enable_dus_accumulator_zero_init_elimination=false"
    plans = []
    for number, keys in enumerate([(), (option,)]):
        out = tmp_path / f"{number}.json"
        keys = "--topology=h200:1x1", "--config.model.scan_layers=True", f"--output={out}", *keys
        planned = plan("--config=configs/papers/gpt2.py", *KEYS, "--config.parallel.mesh.data=1", *keys)
        assert planned.returncode == 0, planned.stderr
        plans.append(json.loads(out.read_text()))
    without, zeroed = (planned["schedule"]["traffic"] for planned in plans)
    # Of a token in each of 4 layers: two arrays as wide as the feed-forward layer, nine as wide as the model.
    assert zeroed - without == pytest.approx(4 * 64 * 512 * 2 * (2 * 1024 + 9 * 256), rel=0.03)
    assert without < 52.5e9
    executed, model = plans[0]["schedule"]["flops"], plans[0]["model_flops"]
    unmasked = (
        4 * 12 * 256 * 512 / 2 * 64 * 512
    )  # of the products of attention, which causal kernels leave out
    assert model - unmasked <= 1.001 * executed


@needs("jax_cuda13_plugin")
def test_a_token_reads_the_weights_once_and_waits_for_no_branch():
    command = [sys.executable, "-m", "benchmarks.planned_decoding", "--cases", "M1"]
    printed = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True, check=True).stdout
    _, kernels, branches, moved, weights = printed.splitlines()[-1].strip("| ").split(" | ")
    assert (int(branches), int(weights)) == (0, 248)
    assert int(moved) < 1.25 * int(weights) and int(kernels) < 260
