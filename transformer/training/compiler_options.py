"""The options of a config for the compiler."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.errors import UserError


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
            said = " ".join(str(error).split())
            raise UserError(f"{key}; the compiler for {kind} says: {said}") from None
