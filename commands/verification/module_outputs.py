"""The outputs of all modules of a model in a loss, and their gradients, in the order of computation."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer.evaluation.nonfinite import Place, Probes


@dataclasses.dataclass(frozen=True)
class Output(Place):
    """An output of a module, or its gradient."""

    value: Any = None

    @property
    def key(self) -> tuple[str, int]:
        """The same whether layers are scanned or not."""
        return self.module, self.number


class Outputs(Probes):
    """A flax method interceptor that notes the outputs of modules, and their gradients, on the host."""

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls a method of a module, and notes what it gets and returns."""
        if context.module.scope is None or context.method_name != "__call__":
            return super().__call__(function, args, kwargs, context)

        def noted(x: Any, *rest: Any, **options: Any) -> Any:
            owner, _, name = self._path.rstrip("/").rpartition("/")
            return function(self._observed(f"{owner or 'the model'}, before {name}", x), *rest, **options)

        return super().__call__(noted, args, kwargs, context)

    def noted(self, x: jax.Array) -> jax.Array:
        """All of it."""
        return x

    def place(self, module: str, number: int, count: int, noted: Any) -> Output:
        """The output, with its values."""
        return Output(module, number, count, (), np.asarray(noted, np.float64))

    def places(self, direction: int) -> list[Any]:
        """The outputs (1) or their gradients (-1), in the order in which they were computed."""
        return self.outputs() if direction == 1 else self.gradients()
