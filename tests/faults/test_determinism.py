"""That `deterministic` gives the same bits, and reaches the compiler."""

import jax
import pytest

from tests import runs
from transformer.errors import UserError
from transformer.training import step
from transformer.training.extras import compiler_options
from workdir.opening import open_without_data, read_config
from workdir.session import train

SAME = [("deterministic", "True"), ("optimizer.schedule", "constant")]


@pytest.fixture
def compiled_with(monkeypatch):
    """The options with which train steps are compiled."""
    compiler_options = []
    original = step.CompiledStep.__init__

    def init(self, function, options):
        compiler_options.append(options)
        original(self, function, options)

    monkeypatch.setattr(step.CompiledStep, "__init__", init)
    return compiler_options


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_two_runs_have_the_same_bits(tmp_path, compiled_with):
    more = [("parallel.mesh.fsdp", "2"), ("model.dtype", "bfloat16")]
    source = [("data.source", runs.write_corpus(tmp_path / "corpus"))]
    saved = []
    for name in ("one", "other"):
        jax.clear_caches()
        train(str(tmp_path / name), [*source, *SAME, *more], "configs/lm.py:tiny")
        saved.append(jax.tree.leaves(runs.state(tmp_path / name)))
    assert compiled_with == [compiler_options.OF_XLA] * 2
    assert all((a == b).all() for a, b in zip(*saved, strict=True)) and len(saved[0]) > 10


def opened(*overrides):
    return open_without_data(read_config("configs/lm.py:tiny", overrides), [])


def test_the_option_is_one_of_the_compiler_and_no_other_may_contradict_it(monkeypatch):
    asked = ("deterministic", "True")
    run = opened(asked)
    assert run.compiler_options == {"xla_gpu_deterministic_ops": True}
    assert opened().compiler_options == {}
    option = "parallel.compiler_options.xla_gpu_deterministic_ops"
    assert opened(asked, (option, "True")).compiler_options == run.compiler_options
    with pytest.raises(UserError, match=rf"^config\.{option}: False with deterministic True; expected True$"):
        opened(asked, (option, "False"))
    compiler_options.check_compiler_options(run.compiler_options, run.mesh)  # XLA knows it
    monkeypatch.setitem(compiler_options.DETERMINISTIC, "cpu", {"xla_gpu_deterministic": True})
    run = opened(asked)
    with pytest.raises(UserError, match="No such compile option: 'xla_gpu_deterministic'"):
        compiler_options.check_compiler_options(run.compiler_options, run.mesh)


def test_it_is_passed_when_the_step_is_compiled(monkeypatch):
    monkeypatch.setitem(compiler_options.DETERMINISTIC, "cpu", {"xla_no_such_option": True})
    with pytest.raises(Exception, match="xla_no_such_option"):
        opened(("deterministic", "True")).compiled()
