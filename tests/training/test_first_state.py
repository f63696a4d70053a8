"""The first state of a run, of a program that is compiled quickly."""

import functools

import jax
import numpy as np
import pytest

from transformer.training import run as run_module
from workdir.opening import open_without_data, read_config

CONFIGS = ["configs/lm.py:tiny", "configs/rnn_translation.py:tiny"]


def leaves(config, changes=()):
    """The bytes of each array of a first state."""
    run = open_without_data(read_config(config), [*changes])
    with run.placed():
        return [np.asarray(x).tobytes() for x in jax.tree.leaves(run.first_state().params)]


@pytest.mark.thorough
@pytest.mark.parametrize("config", CONFIGS)
def test_a_quick_compilation_draws_the_same_bits(config, monkeypatch):
    quickly = leaves(config)
    whole = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    assert run_module.jit_once.keywords["compiler_options"] != whole
    monkeypatch.setattr(run_module, "jit_once", functools.partial(jax.jit, compiler_options=whole))
    assert quickly == leaves(config) != leaves(config, [("seed", "1")])
