"""Which module of a model computes the first value that is not finite, in a step or its gradient."""

import dataclasses
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer.evaluation.terms_by_row import replicated
from transformer.training.experiment import Batch, Objective, Params
from transformer.training.step import split_rows


@dataclasses.dataclass(frozen=True)
class Place:
    """An output of a module. Where a loop repeats it, for all layers say, this is that of iteration `number`
    of `count`."""

    module: str
    number: int
    count: int
    bad: tuple[int, ...]  # the rows that are not finite; (-1,) if rows cannot be told apart; () if all are

    def __str__(self) -> str:
        repeated = f", number {self.number} of {self.count} from 0" if self.count > 1 else ""
        rows = ", ".join(str(row) for row in self.bad if row >= 0)
        return f"{self.module}{repeated}{', rows ' if rows else ''}{rows}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first value that is not finite: the output `forward`; or if all are finite, the `loss`; or if it is
    finite, going back from it, the gradient of the output `backward`, which follows that of `after`."""

    forward: Place | None = None
    loss: bool = False
    backward: Place | None = None
    after: Place | None = None


class Probes:
    """A flax method interceptor that notes in which rows outputs of modules, or their gradients, are not
    finite.

    Each output passes through an identity that reports to the host: once in each iteration of a loop, and in
    the gradient in the reverse order.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._names: list[str] = []
        self._outputs: dict[int, list[Any]] = defaultdict(list)
        self._gradients: dict[int, list[Any]] = defaultdict(list)
        self._root: Any = None  # the module of the innermost stack of layers, whose paths start with it
        self._prefix = self._path = ""

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls `function`, a method of a module, and observes what it returns."""
        module, outside = context.module, (self._root, self._prefix, self._path)
        if module.scope is None:  # a method without parameters, as of a mixer with a cache
            return function(*args, **kwargs)
        if not module.path and module.name and module is not self._root:
            self._root, self._prefix = module, f"{self._path}{module.name}/"
        self._path = name = self._prefix + "".join(f"{part}/" for part in module.path)
        result = function(*args, **kwargs)
        self._root, self._prefix, self._path = outside
        if context.method_name != "__call__":
            return result
        return jax.tree.map(functools.partial(self._observed, name.rstrip("/") or "the model"), result)

    def _observed(self, name: str, value: Any) -> Any:
        if not isinstance(value, jax.Array) or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        number = len(self._names)
        self._names.append(name)
        return _observed(value, self.noted, self._outputs[number].append, self._gradients[number].append)

    def noted(self, x: jax.Array) -> jax.Array:
        """The rows of an output or its gradient that are not finite, or whether one value is not."""
        bad = ~jnp.isfinite(x)
        rowed = x.shape[:1] == (self.rows,)
        return jnp.any(bad.reshape(self.rows, -1), axis=1) if rowed else jnp.any(bad)

    def place(self, module: str, number: int, count: int, noted: Any) -> Place:
        """The place of an output, with what was noted of it."""
        bad = np.asarray(noted)
        rows = tuple(np.flatnonzero(bad).tolist()) if bad.ndim else (-1,) * bool(bad)
        return Place(module, number, count, rows)

    def outputs(self) -> list[Place]:
        """The outputs in the order of computation."""
        return self._places(self._outputs, 1)

    def gradients(self) -> list[Place]:
        """The outputs whose gradients were computed, in that order."""
        return self._places(self._gradients, -1)[::-1]

    def _places(self, seen: dict[int, list[Any]], direction: int) -> list[Place]:
        """The outputs in the order of computation. Neighbours of one stack of layers that were called equally
        often are in one loop; outputs of the same name that are called once are of unrolled layers."""

        def loop(number: int) -> tuple[int, str]:
            return len(seen[number]), self._names[number].partition("blocks")[0]

        places = []
        for (count, _), group in itertools.groupby((n for n in sorted(seen) if seen[n]), key=loop):
            numbers = [*group]
            for call, number in itertools.product(range(count), numbers):
                noted = seen[number][::direction][call]
                places.append(self.place(self._names[number], call, count, noted))
        often, met = Counter(place.module for place in places if place.count == 1), Counter[str]()
        for i, place in enumerate(places):
            if place.count == 1:
                places[i] = dataclasses.replace(place, number=met[place.module], count=often[place.module])
                met[place.module] += 1
        return places


def _observed(value: jax.Array, noted: Callable, note: Callable, note_gradient: Callable) -> jax.Array:
    """`value`; what is `noted` of it and of its gradient is reported when they are computed."""

    def report(x: jax.Array, to: Callable) -> None:
        jax.debug.callback(to, replicated(noted(x)))

    @jax.custom_vjp
    def identity(x: jax.Array) -> jax.Array:
        report(x, note)
        return x

    def forward(x: jax.Array) -> tuple[jax.Array, None]:
        report(x, note)
        return x, None

    def backward(_: None, gradient: jax.Array) -> tuple[jax.Array]:
        report(gradient, note_gradient)
        return (gradient,)

    identity.defvjp(forward, backward)
    return identity(value)


def first_nonfinite(
    experiment: Objective, params: Params, batch: Batch, carry: Any, rng: jax.Array, parts: int
) -> Finding:
    """The first value that is not finite in the loss of a batch or in its gradient, as `make_train_step`
    computes them with `parts` microbatches; rows are numbered as in the batch."""
    weights = experiment.weigh(batch)
    whole = split_rows((dict(batch), carry), parts)
    for part in range(parts):
        rows, carry_of_part = jax.tree.map(lambda x: x[part], whole)  # noqa: B023
        size = len(next(iter(rows.values())))

        def objective(params: Params, rows: Batch, carry: Any, rng: jax.Array) -> jax.Array:
            terms, _ = experiment.loss_and_carry(params, rows, carry, rng, True)
            losses = [terms[name].total / jnp.maximum(weight, 1e-9) for name, weight in weights.items()]
            return jnp.sum(jnp.stack(losses))

        def observe(function: Callable) -> tuple[Probes, Any]:
            with nn.intercept_methods(probes := Probes(size)):  # noqa: B023
                result = jax.jit(function)(params, rows, carry_of_part, jax.random.fold_in(rng, part))  # noqa: B023
            jax.block_until_ready(result)
            jax.effects_barrier()
            return probes, result

        def numbered(place: Place | None) -> Place | None:
            bad = tuple(row * parts + part if row >= 0 else row for row in place.bad) if place else ()  # noqa: B023
            return place and dataclasses.replace(place, bad=bad)

        probes, loss = observe(objective)
        if wrong := next((place for place in probes.outputs() if place.bad), None):
            return Finding(forward=numbered(wrong))
        if not jnp.isfinite(loss):
            return Finding(loss=True)
        before, (probes, _) = None, observe(jax.grad(objective))
        for place in probes.gradients():
            if place.bad:
                return Finding(backward=numbered(place), after=before)
            before = place
    return Finding()


def nonfinite_params(params: Params) -> list[str]:
    """The paths of the parameters that are not finite in places."""
    whole = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.all(jnp.isfinite(x)), tree))(params)
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(whole))
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, finite in leaves if not finite]
