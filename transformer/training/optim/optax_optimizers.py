"""Optimizers by name: those of optax and `OPTIMIZERS`, built with a schedule and masked weight decay."""

import difflib
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
import optax.contrib

from transformer.errors import UserError
from transformer.training.optim.layerwise import Factory, by_layer
from transformer.training.optim.roles import Roles, unknown
from transformer.training.optim.schedules import Schedule
from transformer.training.state import Params

CAUTIOUS = "cautious."
MASKS = ("mask", "weight_decay_mask")
DIMENSIONS = "muon_weight_dimension_numbers"


def matrix_dimensions(params: Params, roles: Roles) -> Params:
    """The axes of each parameter that are rows and columns of a matrix, for Muon; None for parameters of
    Adam.

    Hidden matrices are Muon's: those of layers are (n, rows, columns) with the layers n left as a batch of
    matrices, and so are the experts and gates of (n, e, rows, columns) and (rows, g, columns). Embeddings,
    heads and vectors are Adam's, as in https://kellerjordan.github.io/posts/muon.
    """

    def dimensions(path: tuple, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        role = roles(path)
        return optax.contrib.MuonDimensionNumbers(role.rows, role.columns) if role.is_hidden else None

    return jax.tree_util.tree_map_with_path(dimensions, params)


def muon(roles: Roles) -> Factory:
    """optax's Muon, which takes the hidden matrices (see `matrix_dimensions`) and leaves the rest to Adam."""
    dimensions = functools.partial(matrix_dimensions, roles=roles)
    return functools.partial(optax.contrib.muon, muon_weight_dimension_numbers=dimensions)


OPTIMIZERS: dict[str, Callable[[Roles], Factory]] = {
    "contrib.muon": muon,
    # Their update of an element depends on its whole array: on norms, a factored moment, a trust ratio.
    "adafactor": functools.partial(by_layer, optax.adafactor),
    "fromage": functools.partial(by_layer, optax.fromage),
    "lamb": functools.partial(by_layer, optax.lamb),
    "lars": functools.partial(by_layer, optax.lars),
    "novograd": functools.partial(by_layer, optax.novograd),
}
"""Name -> function from the `Roles` of parameters to a factory like those of optax, (learning_rate, further
arguments) -> optimizer: optimizers that ask what an array is, or that optax does not have. All others of
optax work element by element, or on all parameters at once, and are found there by name."""


def find_optimizer(name: str, key: str = "name", roles: Roles = unknown) -> Factory:
    """The factory of an optimizer of `OPTIMIZERS` or optax by `name` ("adamw", "contrib.muon"), or of its
    `cautious` variant ("cautious.adamw"); raises `UserError` about `key` if there is none."""
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](roles)
    if name.startswith(CAUTIOUS):
        return _cautious(name.removeprefix(CAUTIOUS), key, roles)
    factory = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), optax)
    if not is_optimizer(factory):
        raise UserError(f"{key}: optax has no optimizer {name!r}; {_valid_names(name)}")
    return factory


def _cautious(name: str, key: str, roles: Roles) -> Factory:
    from transformer.training.optim.cautious import cautious

    if is_schedule_free(name):
        raise UserError(f"{key}: {CAUTIOUS + name!r}; a schedule-free optimizer has no cautious variant")
    factory = find_optimizer(name, key, roles)
    return cautious(factory, mask_name(inspect.signature(factory).parameters), roles)


def is_optimizer(attribute: Any) -> bool:
    """Whether an attribute of optax is the factory of an optimizer."""
    if isinstance(attribute, types.FunctionType):
        if attribute.__name__.startswith(("_", "scale_by_")):
            return False
    elif not isinstance(attribute, functools.partial):
        return False
    parameters = inspect.signature(attribute).parameters
    return "learning_rate" in parameters and "base_optimizer" not in parameters


def _valid_names(name: str) -> str:
    """The end of an error: optimizers with similar names, or all of them."""
    families = {"": optax, "contrib.": optax.contrib}
    names = [
        prefix + known
        for prefix, family in families.items()
        for known, value in sorted(vars(family).items())
        if not known.startswith("_") and is_optimizer(value)
    ]
    names += [known for known in OPTIMIZERS if known not in names]
    near = difflib.get_close_matches(name, names) or [known for known in names if name in known]
    return f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names)}"


def build(
    name: str,
    arguments: Mapping[str, Any],
    schedule: Schedule,
    weight_decay: float,
    decayed: Any,
    roles: Roles,
) -> optax.GradientTransformation:
    """An optimizer with weight decay where the tree `decayed`, or the result of the function `decayed` on the
    parameters, is True; None: everywhere. The `roles` say what is a matrix, and what a layer of it."""
    factory = find_optimizer(name, roles=roles)
    parameters = inspect.signature(factory).parameters
    if mask := mask_name(parameters):
        return factory(learning_rate=schedule, **{**arguments, "weight_decay": weight_decay, mask: decayed})
    if "weight_decay" in parameters:
        return factory(learning_rate=schedule, **{"weight_decay": weight_decay, **arguments})
    return _with_decay(factory(learning_rate=schedule, **arguments), schedule, weight_decay, decayed)


def _with_decay(
    optimizer: optax.GradientTransformation, schedule: Schedule, weight_decay: float, decayed: Any
) -> optax.GradientTransformation:
    """The optimizer with decoupled weight decay, which it has not itself."""
    if not weight_decay:
        return optimizer
    decay = optax.add_decayed_weights(lambda count: -weight_decay * schedule(count), decayed)
    return optax.chain(optimizer, decay)


def mask_name(parameters: Mapping[str, Any]) -> str | None:
    """The name of an optimizer's parameter for the mask of weight decay, or None."""
    return next((name for name in MASKS if {name, "weight_decay"} <= parameters.keys()), None)


def is_schedule_free(name: str) -> bool:
    """Whether the optimizer is schedule-free, and so keeps its own average."""
    return name.rpartition(".")[2].startswith("schedule_free")


def own_average(opt_state: optax.OptState, params: Params) -> Params:
    """The averaged parameters of a schedule-free optimizer, x = (y - (1 - b1) z) / b1, where gradients are
    taken at y and z are the fast parameters.

    Source: Defazio et al. 2024, "The road less scheduled", equations 1 to 3.
    """

    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    (state,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return optax.contrib.schedule_free_eval_params(state, params)
