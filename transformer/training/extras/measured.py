"""A second training step, taken where metrics are logged, that also measures every layer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.training.experiment import Batch
from transformer.training.hooks import is_due
from transformer.training.metrics import Sum
from transformer.training.optim.rules import numbered
from transformer.training.state import Params, State
from transformer.training.step import CompiledStep, TrainStep


class AtLogged:
    """The step `measured` where the number of the step is a multiple of `every`, else the step `plain`.

    Both are compiled by the first call, so that no later step waits for it. They compute the same new state,
    by programs that differ only in what they return.
    """

    def __init__(self, plain: CompiledStep, measured: CompiledStep, every: int, done: int) -> None:
        """`done` is the number of steps that have been made."""
        self.plain, self.measured, self.done, self._every = plain, measured, done, every

    def __call__(self, state: State, batch: Batch, *more: Any) -> tuple[State, dict[str, Sum]]:
        """The next step; `more` are further arguments of the programs."""
        self.compile(state, batch, *more)
        self.done += 1
        return (self.measured if is_due(self._every, self.done) else self.plain)(state, batch, *more)

    def compile(self, *arguments: Any) -> None:
        """Compiles both for these arguments, if they have not been."""
        for program in (self.plain, self.measured):
            program.compile(*arguments)

    @property
    def memory_gb(self) -> float | None:
        """The memory of the larger step, in GiB on each device."""
        sizes = [program.memory_gb for program in (self.plain, self.measured)]
        return max((size for size in sizes if size is not None), default=None)


def measuring(step: TrainStep, measures: Any) -> TrainStep:
    """The train step `step`, which also returns what `measures` finds in the layers of the model (see
    `Experiment.measures`)."""

    def measured(state: State, batch: Batch) -> tuple[State, dict[str, Sum]]:
        with nn.intercept_methods(measures):
            state, metrics = step(state, batch)
        return state, {
            name: value for key, sum_ in metrics.items() for name, value in measures.finished(key, sum_)
        }

    return measured


def layer_norms(layers: tuple[str, ...]) -> Callable[..., dict[str, Sum]]:
    """A function of trees of the parameters' structure, by name, that returns the L2 norm of each layer:
    `norms/NAME/blocks/3`, and outside of blocks of each module, `norms/NAME/embedding`; `layers` as for
    `rules.parameter_settings`."""

    def norms(**trees: Params) -> dict[str, Sum]:
        squares: dict[str, jax.Array] = {}
        for kind, tree in trees.items():
            for leaf, paths in zip(jax.tree.leaves(tree), numbered(tree, layers), strict=True):
                squares_n = jnp.sum(jnp.square(leaf.astype(jnp.float32)).reshape(len(paths), -1), axis=1)
                for i, path in enumerate(paths):
                    name = f"norms/{kind}/{_layer(path)}"
                    squares[name] = squares.get(name, jnp.float32(0)) + squares_n[i]
        return {name: Sum.of(jnp.sqrt(square)) for name, square in squares.items()}

    return norms


def _layer(path: str) -> str:
    """ "encoder/blocks/3/norm/scale" -> "encoder/blocks/3"; "final_norm/scale" -> "final_norm"."""
    before, blocks, after = path.partition("blocks/")
    return f"{before}{blocks}{after.split('/')[0]}" if blocks else before.rpartition("/")[0] or before


def make(run: Any, plain: CompiledStep, done: int) -> Any:
    """The step of a `Run` with `train.log_norms` or `train.log_attention`, from the plain one, in what the
    experiment has `around` it."""
    around = run.experiment.around
    step = at_logged(run, plain, done) if asks_measures(run.config.train) else plain
    return around(run, step) if around else step


def asks_measures(config: Any) -> bool:
    """Whether layers are measured where metrics are logged."""
    return config.log_norms or config.log_attention


def at_logged(
    run: Any, plain: CompiledStep, done: int, wrap: Callable[[TrainStep], Any] = lambda step: step
) -> AtLogged:
    """The step that also measures every layer where metrics are logged; `wrap` gives it the arguments of
    `plain`."""
    c = run.config.train
    options = {"norms": layer_norms(run.layers)} if c.log_norms else {}
    make_measures = run.experiment.measures
    measures = make_measures and make_measures(c.log_norms, c.log_attention)
    step = run.make_step(**options)
    step = run.jitted(wrap(measuring(step, measures) if measures else step))
    return AtLogged(plain, CompiledStep(step, run.compiler_options), c.log_every, done)
