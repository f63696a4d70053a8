import json

import jax
import jax.numpy as jnp
import pytest

from tests import runs
from transformer.training.step import CompiledStep

MIB = 2**20


def test_it_is_compiled_once_and_counts_what_is_donated_once():
    traced = []

    def add(total, x):
        traced.append(x.shape)
        return total + x, jnp.sum(x)

    total, x = jnp.zeros((MIB,)), jnp.ones((MIB,))
    kept, donated = CompiledStep(jax.jit(add)), CompiledStep(jax.jit(add, donate_argnums=0))
    assert kept.memory_gb is None
    for _ in range(3):
        result, _ = kept(total, x)
    assert float(result[0]) == 1.0 and len(traced) == 1
    assert kept.memory_gb == pytest.approx(12 * MIB / 2**30, rel=0.01)  # two arguments and the result
    result, _ = donated(total, x)
    assert donated.memory_gb == pytest.approx(8 * MIB / 2**30, rel=0.01)


def test_other_shapes_are_an_error_and_not_another_program():
    program = CompiledStep(jax.jit(lambda x: x + 1))
    program(jnp.zeros(3))
    with pytest.raises(TypeError, match="compiled"):
        program(jnp.zeros(4))


def test_without_jit_a_debugger_sees_values_and_not_tracers():
    seen = []

    def double(x):
        seen.append(float(x[0]))  # an error for a tracer
        return 2 * x

    with jax.disable_jit():
        found = CompiledStep(jax.jit(double, donate_argnums=0))(jnp.full(2, 3.0))
    assert seen == [3.0] and found.tolist() == [6.0, 6.0]


@pytest.mark.thorough
def test_a_run_says_what_its_step_takes(tmp_path):
    runs.train(runs.write_corpus(tmp_path / "text"), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [line["train/step_gb"] for line in lines if "train/step_gb" in line]
    assert len(found) == 1 and 1e-4 < found[0] < 0.05
