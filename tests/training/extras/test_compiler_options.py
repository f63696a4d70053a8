"""Options of the compiler from the config: they reach it, and what it refuses is refused before training."""

import json
import re
import types

import jax
import jax.numpy as jnp
import pytest

import launch
from experiments import find_experiment
from tests import runs
from transformer.errors import UserError
from transformer.training.extras.compiler_options import OF_SCANS, check_compiler_options, options_for
from transformer.training.run import Run
from transformer.training.step import CompiledStep
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

KEY = "parallel.compiler_options"


def make(*overrides, **options):
    config = opening.check_config(opening.read_config("configs/lm.py:tiny", overrides))
    return Run(find_experiment(config.experiment)(config), config, "nowhere", **options)


def test_a_program_is_compiled_with_its_options(tmp_path):
    CompiledStep(jax.jit(jnp.sin), {"xla_dump_to": str(tmp_path)})(0.25)
    assert list(tmp_path.glob("*sin*after_optimizations*"))


@pytest.mark.parametrize(
    "overrides",
    [
        [(KEY, '{"xla_cpu_enable_fast_math": true, "xla_backend_optimization_level": 1}')],
        [(f"{KEY}.xla_cpu_enable_fast_math", "true"), (f"{KEY}.xla_backend_optimization_level", "1")],
    ],
)
def test_they_are_given_together_or_one_by_one(overrides):
    run = make(*overrides)
    assert run.compiler_options == {"xla_cpu_enable_fast_math": True, "xla_backend_optimization_level": 1}
    check_compiler_options(run.compiler_options, run.mesh)


def test_scanned_layers_have_an_option_on_gpus_of_nvidia_unless_it_is_given(monkeypatch):
    h200 = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    mesh = types.SimpleNamespace(devices=types.SimpleNamespace(flat=[h200]))
    (option,) = OF_SCANS
    assert options_for({}, False, True, mesh) == OF_SCANS == {option: True}
    assert options_for({"xla_a": 1}, False, True, mesh) == {"xla_a": 1, option: True}
    assert options_for({option: False}, False, True, mesh) == {option: False}
    assert options_for({}, False, False, mesh) == {}
    monkeypatch.setattr("jaxlib.version.__version_info__", (0, 10, 1))
    assert options_for({}, False, True, mesh) == {}
    monkeypatch.undo()
    run = make(("model.scan_layers", "True"))
    assert run.compiler_options == {}  # on CPUs
    check_compiler_options(OF_SCANS, run.mesh)  # XLA knows it


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("xla_no_such", "true", "True; the compiler for cpu reports: .*No such compile option: 'xla_no_s"),
        ("xla_tpu_enable_async_collective_fusion", "true", "True; the compiler for cpu reports: .*No such"),
        ("xla_backend_optimization_level", "much", "'much'; .* reports: .* 'much' is not a valid int32"),
        ("xla_backend_optimization_level", "[1]", r"\[1\]; expected true or false, a number or a text"),
    ],
)
def test_one_that_the_compiler_refuses_is_named_before_anything_is_prepared(option, value, message):
    run = make(("data.source", "text:/nowhere"), (f"{KEY}.xla_cpu_enable_fast_math", "true"))
    run.compiler_options |= make((f"{KEY}.{option}", value)).compiler_options
    with pytest.raises(UserError, match=f"^config.{KEY}.{option}: {message}"):
        run.prepare()


def test_the_devices_of_the_run_are_asked(monkeypatch):
    asked = []

    class Lowered:
        def compile(self, compiler_options):
            asked.append(compiler_options)

    def jit(function, out_shardings):
        asked.append(out_shardings.device_set)
        return type("Jitted", (), {"lower": lambda self: Lowered()})()

    run = make(devices=jax.devices()[2:4])
    monkeypatch.setattr(jax, "jit", jit)
    check_compiler_options({"a": 1, "b": "c"}, run.mesh)
    assert asked == [{*jax.devices()[2:4]}, {"a": 1}, {*jax.devices()[2:4]}, {"b": "c"}]


@pytest.mark.thorough
def test_a_run_keeps_its_options_and_may_change_them(tmp_path, capfd):
    source, folder, dump = runs.write_corpus(tmp_path / "text", 20), tmp_path / "run", tmp_path / "dump"
    begin = runs.tiny(source, folder, "--config.model.d_ff=40", "--config.train.steps=2")

    def kept():
        return json.loads((folder / "config.json").read_text())["parallel"]["compiler_options"]

    assert launch.main([*begin, f"--config.{KEY}.xla_no_such=1"]) == 2
    error = capfd.readouterr().err
    assert re.fullmatch(rf"error: config\.{KEY}\.xla_no_such: 1; the compiler .*'xla_no_such'\n", error)
    assert not folder.exists()

    assert launch.main([*begin, f"--config.{KEY}.xla_dump_to={dump}"]) == 0
    assert list(dump.glob("*train_step*after_optimizations*"))
    assert launch.main([f"--workdir={folder}", "--config.train.steps=3"]) == 0
    assert kept() == {"xla_dump_to": str(dump)}
    assert launch.main([f"--workdir={folder}", "--config.train.steps=4", f"--config.{KEY}={{}}"]) == 0
    assert kept() == {}
