"""The options of a config for the compiler, and those of `deterministic` and of scanned layers."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.errors import UserError

DETERMINISTIC: dict[str, dict[str, Any]] = {"tpu": {}}
"""Platform -> options with which every execution of a program gives the same bits; on the others those in
`OF_XLA`. XLA's programs for TPUs always do."""

OF_XLA: dict[str, Any] = {"xla_gpu_deterministic_ops": True}
"""No sums by atomic additions, whose order is that of time, and no kernels chosen by how long they took."""


OF_SCANS: dict[str, Any] = {"xla_gpu_enable_dus_accumulator_zero_init_elimination": True}
"""For scanned layers on NVIDIA's GPUs, from jaxlib 0.10.2 on, which has it first: what a loop writes whole,
one part in each round, as what is saved for the backward pass, is not filled with zeros before the loop."""


def options_for(options: Mapping[str, Any], deterministic: bool, scanned: bool, mesh: Mesh) -> dict[str, Any]:
    """The options of the train step: those of a config, by default those for scanned layers, and with
    `deterministic` what that takes on the devices of the mesh.

    Raises:
      UserError: an option contradicts it.
    """
    device = mesh.devices.flat[0]
    known = jaxlib.version.__version_info__ >= (0, 10, 2)
    default = OF_SCANS if scanned and known and "NVIDIA" in device.device_kind else {}
    needed = DETERMINISTIC.get(device.platform, OF_XLA) if deterministic else {}
    for name, value in needed.items():
        if options.get(name, value) != value:
            key = f"config.parallel.compiler_options.{name}: {options[name]!r}"
            raise UserError(f"{key} with deterministic True; expected {value!r}")
    return {**default, **options, **needed}


def check_compiler_options(options: Mapping[str, Any], mesh: Mesh) -> None:
    """Compiles a small program for the devices of the mesh, with each option alone.

    Raises:
      UserError: the compiler of these devices has no such option, or the option no such value.
    """
    everywhere, kind = NamedSharding(mesh, PartitionSpec()), mesh.devices.flat[0].device_kind
    for name, value in options.items():
        key = f"config.parallel.compiler_options.{name}: {value!r}"
        if not isinstance(value, (bool, int, float, str)):
            raise UserError(f"{key}; expected true or false, a number or a text")
        program = jax.jit(lambda: jnp.zeros(()), out_shardings=everywhere).lower()
        alone: dict[str, Any] = {name: value}
        try:
            program.compile(compiler_options=alone)
        except RuntimeError as error:
            reported = " ".join(str(error).split())
            raise UserError(f"{key}; the compiler for {kind} reports: {reported}") from None
