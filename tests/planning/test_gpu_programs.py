"""The train steps of `benchmarks.gpu_quarter_hour`, compiled for the GPU that it waits for."""

import importlib.util
import json
import subprocess
import sys

import pytest

from benchmarks.gpu_cases import CASES
from tests import runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda13_plugin") is None, reason="jax_cuda13_plugin is not installed"
    ),
]

STEPS = {
    arguments: f"{name}: {who}"
    for name, case in CASES.items()
    for who, (kind, *arguments) in case.contestants.items()
    for arguments in [tuple(arguments)]
    if kind == "train_step"
}
"""Config and keys -> the last contestant that trains with them."""

PROGRAM = """
import importlib, sys
short, flags = sys.argv[1], sys.argv[2:]
if short:
    importlib.import_module("transformer.layers.attention.kernels.cudnn").SHORT = int(short)
import launch
sys.exit(launch.main(flags))
"""


@pytest.mark.parametrize("step", STEPS, ids=STEPS.values())
def test_each_step_fits_and_is_as_large_as_its_model(step, tmp_path):
    config, *keys = step
    values = dict(key.split("=", 1) for key in keys)
    short, _ = values.pop("short", ""), values.pop("documents", "")
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    out = tmp_path / "plan.json"
    flags += ["--mode=plan", f"--config={config}", "--topology=h200:1x1", f"--output={out}"]
    command = [sys.executable, "-c", PROGRAM, short, *flags]
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    plan = json.loads(out.read_text())
    assert plan["fits"] and plan["kind"] == "NVIDIA H200"
    executed = plan["schedule"]["flops"] / plan["model_flops"]
    assert 0.6 < executed < 1.6, "neither half of attention nor rematerialisation explains it"
    if "dropout=0.1" not in str(keys) and "multi30k" not in config:
        assert "attention: cudnn" in done.stdout
