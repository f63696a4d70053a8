"""The coordinate check: how the outputs of each layer, and their changes in training, grow with the width.

In a parametrisation in which hyper-parameters carry over, neither depends on the width: the entries of every
layer's output have the same size, and so has what a few steps change of them.
Source: Yang et al. 2022, "Tensor programs V", section D.1.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer.evaluation.statistics.paired_differences import interval

Activations = dict[str, jax.Array]
"""Layer, "blocks/0/attention/query", in the order of computation -> its output (b, t, ...)."""


def record(function: Callable[..., Any], block: type[nn.Module], *arguments: Any) -> Activations:
    """The outputs of all layers in a call of a function that applies a model. Those of a `block`, of which
    there are several with the same names, are numbered.

    Stacks must not be scanned or rematerialised, since what is recorded is then known only inside.
    """
    activations: Activations = {}
    inside: list[str] = []
    counts: Counter[str] = Counter()

    def note(call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        module, is_block = context.module, isinstance(context.module, block)
        is_unembedding = context.method_name == "attend" and not inside
        if context.method_name != "__call__" and not is_unembedding:
            return call(*args, **kwargs)
        if is_block:
            stack = module.name or "blocks"
            inside.append(f"{stack}/{counts[stack]}")
            counts[stack] += 1
        result = call(*args, **kwargs)
        output = result[0] if isinstance(result, tuple) else result
        own = "" if is_block else "/".join(module.path)
        name = "/".join(filter(None, [*inside[-1:], own])) or "model"
        name += "" if context.method_name == "__call__" else f".{context.method_name}"
        if is_block:
            inside.pop()
        if isinstance(output, jax.Array) and output.ndim > 1 and jnp.issubdtype(output.dtype, jnp.floating):
            counts[name] += 1
            activations[name if counts[name] == 1 else f"{name}({counts[name]})"] = output
        return result

    with nn.intercept_methods(note):
        function(*arguments)
    return activations


@dataclasses.dataclass
class Coordinates:
    """Sizes by layer: (widths, seeds, steps + 1) of the mean absolute output after each step, and of that of
    its change since initialisation."""

    widths: Sequence[int]
    size: dict[str, np.ndarray]
    change: dict[str, np.ndarray]

    def slopes(self, sizes: np.ndarray, first: int = 0) -> np.ndarray:
        """(steps + 1): the power of the width that the mean over seeds grows with, by least squares of its
        logarithm; nan where it is 0, inf where it is not finite. Widths before number `first` are left
        out."""
        return _powers(self.widths[first:], sizes.mean(axis=1)[first:])

    def margins(self, sizes: np.ndarray, error: float = 0.05) -> np.ndarray:
        """(steps + 1): half of the interval of each of the `slopes`, by Student's t from the slopes of single
        seeds; inf for one seed, nan where one of them is not finite."""
        slopes_ns = _powers(self.widths, sizes)
        ends_s = [
            interval(slopes_n, error) if np.isfinite(slopes_n).all() else (np.nan, np.nan)
            for slopes_n in slopes_ns.T
        ]
        return np.array([(high - low) / 2 for low, high in ends_s])

    def drifting(self, bound: float) -> Iterator[tuple[str, str, float]]:
        """(layer, what of it, the slope) of the layers that drift, in the order of computation: the first one
        is the cause of those after it. The size grows with a power of the width above `bound`, before or
        after training; or the change does after the last step; or it falls by one below -`bound` after every
        step, also from the last width but one to the last, and so the layer does not learn in wide models.
        One that stops falling has a random part of n^-1/2 besides one that does not depend on the width n."""
        for name in self.size:
            sizes, changes = self.slopes(self.size[name]), self.slopes(self.change[name])[1:]
            falls = np.maximum(changes, self.slopes(self.change[name], first=-2)[1:]) < -bound
            if sizes[0] > bound:
                yield name, "initial size", float(sizes[0])
            elif changes[-1] > bound or falls.all():
                yield name, "change", float(changes[-1])
            elif sizes[-1] > bound:
                yield name, "size", float(sizes[-1])


def _powers(widths: Sequence[int], sizes: np.ndarray) -> np.ndarray:
    """The powers of the width that sizes (widths, ...) grow with, by least squares of their logarithms; nan
    where one is 0, inf where one is not finite."""
    finite = np.isfinite(sizes).all(axis=0)
    known = finite & (sizes > 0).all(axis=0)
    log_w = np.log(np.array(widths, float))
    centred_w = log_w - log_w.mean()
    slopes = np.tensordot(centred_w, np.log(np.where(known, sizes, 1.0)), 1) / (centred_w @ centred_w)
    return np.where(known, slopes, np.where(finite, np.nan, np.inf))


def coordinates(runs_by_width: Mapping[int, Sequence[Sequence[Mapping[str, np.ndarray]]]]) -> Coordinates:
    """From the activations {width: [[after each step] for each seed]}, those of the same batch."""
    first = next(iter(runs_by_width.values()))[0][0]

    def mean(name: str, of: Callable[[Any, Any], Any]) -> np.ndarray:
        return np.array(
            [
                [[of(step[name], seed[0][name]) for step in seed] for seed in seeds]
                for seeds in runs_by_width.values()
            ]
        )

    def mean_size(x: np.ndarray, initial: Any = 0.0) -> np.floating:
        return np.abs(np.subtract(x, initial, dtype=np.float64)).mean()  # a sum in bfloat16 stops growing

    size = {name: mean(name, lambda x, _: mean_size(x)) for name in first}
    change = {name: mean(name, mean_size) for name in first}
    return Coordinates([*runs_by_width], size, change)
