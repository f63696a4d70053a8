"""A run on devices that it is given, which need not be all of this machine's, nor be there."""

import types

import jax
import numpy as np
import pytest

from experiments import find_experiment
from transformer.errors import UserError
from transformer.training.optim.rules import parameter_settings
from transformer.training.run import Run
from workdir import opening
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")


def make(workdir, **options):
    config = opening.check_config(read_config("configs/lm.py:tiny"))
    return Run(find_experiment(config.experiment)(config), config, workdir, **options)


def test_a_run_is_laid_out_on_the_devices_it_is_given(tmp_path):
    given = jax.devices()[2:4]
    run = make(tmp_path, devices=given)
    assert run.mesh.size == 2
    assert {device for leaf in jax.tree.leaves(run.abstract) for device in leaf.sharding.device_set} == {
        *given
    }


def test_utilisation_is_that_of_the_mesh_and_not_of_this_machine(tmp_path):
    run = make(tmp_path)
    assert run._meter(0, 0.0, lambda: None).peak_rate() is None  # a CPU's is not known
    described = [types.SimpleNamespace(device_kind="TPU v5 lite")] * 64
    flops = run.experiment.flops_per_token(run.abstract.params)
    run.mesh = types.SimpleNamespace(devices=np.array(described).reshape(8, 8))
    assert run._meter(0, 0.0, lambda: None).peak_rate() == pytest.approx(64 * 197e12 / flops)


def test_layers_of_kinds_are_frozen_by_their_depth(tmp_path):
    values = read_config("configs/lm.py:tiny")
    kinds = {"wide": {"d_ff": 64}, "narrow": {"d_ff": 32}}
    values["model"] |= {"num_layers": 4, "layers": ("wide", "narrow"), "layer_kinds": kinds}
    values["optimizer"]["frozen_layers"] = 3
    config = opening.check_config(values)
    run = Run(find_experiment(config.experiment)(config), config, tmp_path)
    run.prepare()
    frozen = parameter_settings(run.abstract.params, config.optimizer, run.layers, run.roles)["blocks"]
    assert frozen["wide"]["feed_forward"]["up"]["kernel"].frozen is True  # layers 0 and 2
    assert frozen["narrow"]["feed_forward"]["up"]["kernel"].frozen.ravel().tolist() == [True, False]
    values["optimizer"]["frozen_layers"] = 5
    config = opening.check_config(values)
    with pytest.raises(UserError, match="frozen_layers: 5; the model has 4 blocks"):
        Run(find_experiment(config.experiment)(config), config, tmp_path).prepare()
