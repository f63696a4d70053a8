"""Optimizers that scale or factor the update of each array as a whole, on arrays that stack layers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from transformer.training.checkpoint import Params

OF_ARRAYS = ("adafactor", "fromage", "lamb", "lars", "novograd")
"""Optimizers of optax whose update of an element depends on its whole array: on norms, a factored second
moment, a trust ratio. All others of them work element by element, or on all parameters at once."""

Factory = Callable[..., optax.GradientTransformation]


def by_layer(factory: Factory) -> Factory:
    """The factory of an optimizer for which each layer of a stacked array is an array of its own, as where
    layers are not stacked: the optimizer, mapped over the first axis of the arrays under `blocks`. What it
    keeps of them has the same first axis, and so do its counts."""

    @functools.wraps(factory)
    def make(*arguments: Any, **options: Any) -> optax.GradientTransformation:
        optimizer = factory(*arguments, **options)

        def init(params: Params) -> dict[str, optax.OptState]:
            return {name: _mapped(optimizer.init, name)(part) for name, part in _parts(params).items()}

        def update(updates: Params, state: Any, params: Params) -> tuple[Params, dict[str, optax.OptState]]:
            found, of = {}, _parts(params)
            for name, part in _parts(updates).items():
                found[name] = _mapped(optimizer.update, name)(part, state[name], of[name])
            groups = [*found]
            joined = jax.tree.map(
                lambda group, *parts: parts[groups.index(group)],
                _groups(updates),
                *(changes for changes, _ in found.values()),
            )
            return joined, {name: new for name, (_, new) in found.items()}

        return optax.GradientTransformation(init, update)

    return make


def is_stacked(path: tuple) -> bool:
    """Whether the first axis of a parameter is that of the layers."""
    return any(str(getattr(entry, "key", "")).endswith("blocks") for entry in path)


def _groups(params: Params) -> Params:
    """The name of the group of each parameter: arrays of as many layers, or all others."""

    def group(path: tuple, leaf: jax.Array) -> str:
        return f"layers_{leaf.shape[0]}" if is_stacked(path) else "others"

    return jax.tree_util.tree_map_with_path(group, params)


def _parts(params: Params) -> dict[str, Params]:
    """The parameters of each group, with those of other groups masked."""
    groups = _groups(params)

    def part(name: str) -> Params:
        return jax.tree.map(lambda group, x: x if group == name else optax.MaskedNode(), groups, params)

    return {name: part(name) for name in sorted({*jax.tree.leaves(groups)})}


def _mapped(function: Callable[..., Any], group: str) -> Callable[..., Any]:
    return function if group == "others" else jax.vmap(function)
