"""Optimizers that scale or factor the update of each array as a whole, on arrays that stack layers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from transformer.training.optim.roles import Roles
from transformer.training.state import Params

Factory = Callable[..., optax.GradientTransformation]


def by_layer(factory: Factory, roles: Roles) -> Factory:
    """The factory of an optimizer for which each layer of a stacked array is an array of its own, as where
    layers are not stacked: the optimizer, mapped over the first axis of arrays that are stacked by their
    `roles`. What it keeps of them has the same first axis, and so do its counts."""

    def group(path: tuple, leaf: jax.Array) -> str:
        return f"layers_{leaf.shape[0]}" if roles(path).is_stacked else "others"

    @functools.wraps(factory)
    def make(*arguments: Any, **options: Any) -> optax.GradientTransformation:
        optimizer = factory(*arguments, **options)

        def init(params: Params) -> dict[str, optax.OptState]:
            parts = _parts(jax.tree_util.tree_map_with_path(group, params), params)
            return {name: _mapped(optimizer.init, name)(part) for name, part in parts.items()}

        def update(updates: Params, state: Any, params: Params) -> tuple[Params, dict[str, optax.OptState]]:
            groups = jax.tree_util.tree_map_with_path(group, updates)
            results, of = {}, _parts(groups, params)
            for name, part in _parts(groups, updates).items():
                results[name] = _mapped(optimizer.update, name)(part, state[name], of[name])
            names, changes = [*results], [change for change, _ in results.values()]
            joined = jax.tree.map(lambda name, *leaves: leaves[names.index(name)], groups, *changes)
            return joined, {name: new for name, (_, new) in results.items()}

        return optax.GradientTransformation(init, update)

    return make


def _parts(groups: Params, params: Params) -> dict[str, Params]:
    """The parameters of each group, with those of other groups masked."""

    def part(name: str) -> Params:
        return jax.tree.map(lambda group, x: x if group == name else optax.MaskedNode(), groups, params)

    return {name: part(name) for name in sorted({*jax.tree.leaves(groups)})}


def _mapped(function: Callable[..., Any], group: str) -> Callable[..., Any]:
    return function if group == "others" else jax.vmap(function)
