"""Parts of the train step that only some runs have: several devices, frozen parameters, own averages."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer.training.optim.optax_optimizers import own_average
from transformer.training.optim.rules import stop_gradients
from transformer.training.parallel import mesh_axes, path_names

if TYPE_CHECKING:
    from transformer.training.run import Run


def step_options(run: "Run") -> dict[str, Callable]:
    """The arguments of `make_train_step` that only some runs have: shardings over several devices, frozen
    parameters, and the average that an optimizer keeps itself."""
    config = run.config.optimizer
    options: dict[str, Callable] = {}
    if run.mesh.size > 1:
        shardings = run.shardings.params
        options["constrain"] = lambda params: jax.lax.with_sharding_constraint(params, shardings)
        if config.is_muon:
            options["reshard_for_optimizer"] = functools.partial(
                reshard_stacks, shardings=shardings, chosen=lambda path: run.roles(path).is_hidden
            )
    if config.has_rules:
        options["stop_gradients"] = functools.partial(
            stop_gradients, config=config, layers=run.layers, roles=run.roles
        )
    if config.averages_itself:
        options["own_average"] = own_average
    return options


def reshard_stacks(tree: Any, shardings: Any, chosen: Callable[[tuple], bool]) -> Any:
    """The tree, with each matrix of stacked layers whole on one device.

    `shardings` are those of parameters. Every array of the tree whose path ends with that of a `chosen`
    parameter of 3 or more axes gets the mesh axes that divide the parameter on its first axis, the layers.
    Products of a matrix with itself, as in Muon, then need no communication, but for axes for which there are
    not enough layers.
    """
    leaves = jax.tree_util.tree_leaves_with_path(shardings)
    owners = {path_names(path): sharding for path, sharding in leaves if chosen(path)}

    def deal(path: tuple, leaf: Any) -> Any:
        names = path_names(path)
        owner = next((owners[names[i:]] for i in range(len(names)) if names[i:] in owners), None)
        if owner is None or leaf.ndim < 3:
            return leaf
        spec = [mesh_axes(part) for part in (*owner.spec, *[None] * (leaf.ndim - len(owner.spec)))]

        def ways(axes: tuple[str, ...]) -> int:
            return math.prod(owner.mesh.shape[axis] for axis in axes)

        for i in sorted(range(1, leaf.ndim), key=lambda i: -ways(spec[i])):
            # The rest of the devices has nothing to do if the layers are too few; but only once, or XLA
            # finds no all-to-all.
            if ways(spec[0]) == 1 or leaf.shape[0] % ways((*spec[0], *spec[i])) == 0:
                spec[0], spec[i] = (*spec[0], *spec[i]), ()
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(owner.mesh, PartitionSpec(*spec)))

    return jax.tree_util.tree_map_with_path(deal, tree)
