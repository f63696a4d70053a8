"""A jitted function that is compiled once, and the memory that its program takes."""

from collections.abc import Callable
from typing import Any

import jax


class Program:
    """A jitted function, compiled by its first call for the shapes, types and shardings of that call."""

    def __init__(self, function: Callable) -> None:
        """`function` is the result of `jax.jit`."""
        self._function: Any = function
        self._compiled: jax.stages.Compiled | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result."""
        if self._compiled is None:
            self._compiled = self._function.lower(*arguments).compile()
        return self._compiled(*arguments)

    @property
    def memory_gb(self) -> float | None:
        """The memory of a call, in GiB on each device; None before the first call, and where XLA has no
        analysis."""
        return None if self._compiled is None else memory_gb(self._compiled)


def memory_gb(compiled: jax.stages.Compiled) -> float | None:
    """Arguments, results and temporary buffers in GiB, with donated arguments counted once."""
    sizes: Any = compiled.memory_analysis()
    if sizes is None:
        return None
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return (held + sizes.temp_size_in_bytes) / 2**30
