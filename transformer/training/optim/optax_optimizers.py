"""Optimizers of optax: found by name, built with a schedule and masked weight decay."""

import contextlib
import difflib
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from transformer.errors import UserError, first_line
from transformer.training.optim.layerwise import OF_ARRAYS, by_layer
from transformer.training.optim.roles import Roles, role, unknown
from transformer.training.optim.schedules import Schedule
from transformer.training.state import Params

CAUTIOUS = "cautious."
MASKS = ("mask", "weight_decay_mask")
DIMENSIONS = "muon_weight_dimension_numbers"


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
    mask, arguments = mask_name(parameters), dict(arguments)
    if mask is not None:
        arguments |= {"weight_decay": weight_decay, mask: decayed}
    elif "weight_decay" in parameters:
        arguments.setdefault("weight_decay", weight_decay)
    if DIMENSIONS in parameters:
        arguments[DIMENSIONS] = functools.partial(matrix_dimensions, roles=roles)
    optimizer = factory(learning_rate=schedule, **arguments)
    if weight_decay > 0 and "weight_decay" not in parameters:
        decay = optax.add_decayed_weights(lambda count: -weight_decay * schedule(count), decayed)
        optimizer = optax.chain(optimizer, decay)
    return optimizer


def own_average(opt_state: optax.OptState, params: Params) -> Params:
    """The averaged parameters of a schedule-free optimizer, x = (y - (1 - b1) z) / b1, where gradients are
    taken at y and z are the fast parameters.

    Source: Defazio et al. 2024, "The road less scheduled", equations 1 to 3.
    """

    def is_state(node: Any) -> bool:
        return hasattr(node, "weight_sum")

    (found,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return optax.contrib.schedule_free_eval_params(found, params)


def is_schedule_free(name: str) -> bool:
    """Whether the optimizer is schedule-free, and so keeps its own average."""
    return name.rpartition(".")[2].startswith("schedule_free")


def multiplies_matrices(name: str) -> bool:
    """Whether the optimizer multiplies each hidden matrix with itself, as Muon does."""
    return DIMENSIONS in inspect.signature(find_optimizer(name)).parameters


def find_optimizer(
    name: str, key: str = "name", roles: Roles = unknown
) -> Callable[..., optax.GradientTransformation]:
    """The optimizer of optax by `name` ("adamw", "contrib.muon"), or its `cautious` variant
    ("cautious.adamw"); raises `UserError` about `key` if there is none. One that works on whole arrays takes
    each layer by itself, by the `roles` of parameters (see `layerwise`)."""
    found = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), optax)
    if not _is_optimizer(found):
        return _variant(name, key, roles)
    return by_layer(found, lambda path: roles(path).is_stacked) if name in OF_ARRAYS else found


def _variant(name: str, key: str, roles: Roles) -> Callable[..., optax.GradientTransformation]:
    """The cautious variant that `name` names; raises `UserError` if it names none."""
    if name.startswith(CAUTIOUS):
        return cautious(name.removeprefix(CAUTIOUS), key, roles)
    raise UserError(f"{key}: optax has no optimizer {name!r}; {_valid_names(name)}")


def cautious(name: str, key: str, roles: Roles) -> Callable[..., optax.GradientTransformation]:
    """The optimizer `name`, which changes parameters only where its update agrees with the gradient:

    u <- u m / max(mean(m), 0.001), with m = 1 where u g < 0 and 0 elsewhere, and the mean over each matrix.

    Masked weight decay is applied besides. Raises `UserError` for a schedule-free optimizer, whose parameters
    are averages of others.
    Source: Liang et al. 2024 (Cautious optimizers), algorithm 1, with the scale of the authors' code.
    """
    if is_schedule_free(name):
        raise UserError(f"{key}: {CAUTIOUS + name!r}; a schedule-free optimizer has no cautious variant")
    factory = find_optimizer(name, key, roles)
    mask = mask_name(inspect.signature(factory).parameters)

    @functools.wraps(factory)
    def make(learning_rate: Schedule, **arguments: Any) -> optax.GradientTransformation:
        decay, decayed = (arguments.pop(each, None) for each in ("weight_decay", mask)) if mask else (0, None)
        plain = factory(learning_rate=learning_rate, **arguments, **({"weight_decay": 0.0} if mask else {}))

        def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
            found, state = plain.update(updates, state, params)
            agreeing = functools.partial(_agreeing, roles)
            return jax.tree_util.tree_map_with_path(agreeing, found, updates), state

        careful = optax.GradientTransformation(plain.init, update)
        if not decay:
            return careful
        added = optax.add_decayed_weights(lambda count: -decay * learning_rate(count), decayed)
        return optax.chain(careful, added)

    return make


def _agreeing(roles: Roles, path: tuple, update: jax.Array, gradient: jax.Array) -> jax.Array:
    agrees = (update * gradient < 0).astype(update.dtype)
    share = jnp.mean(agrees, axis=tuple(range(roles(path).is_stacked, agrees.ndim)), keepdims=True)
    return update * agrees / jnp.maximum(share, 1e-3)


def _valid_names(name: str) -> str:
    """The end of an error: optimizers with similar names, or all of them."""
    families = {"": optax, "contrib.": optax.contrib}
    names = [
        prefix + each
        for prefix, family in families.items()
        for each, value in sorted(vars(family).items())
        if not each.startswith("_") and _is_optimizer(value)
    ]
    near = difflib.get_close_matches(name, names) or [each for each in names if name in each]
    return f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names)}"


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


def check_arguments(name: str, arguments: Mapping[str, Any], key: str = "name") -> None:
    """Raises if the optimizer does not take the arguments, cannot be traced with them, or has a state that no
    checkpoint can keep; `key` is that of its name."""
    if arguments:
        _check_names(name, arguments, key)
    try:
        _trace(name, arguments, lambda count: jnp.float32(1))
    except Exception as error:
        raise _refused(name, arguments, key, error) from error


def _trace(name: str, arguments: Mapping[str, Any], rate: Any) -> None:
    matrices, vectors, table = (jax.ShapeDtypeStruct(n, jnp.float32) for n in ((1, 2, 2), (1, 2), (2, 2)))
    names = {matrices: ("layers", "embed", "mlp"), vectors: ("layers", "norm"), table: ("vocab", "embed")}
    params = {str(i): leaf for i, leaf in enumerate(names)}

    def update(params: Params) -> tuple[Params, Any]:
        roles = lambda path: role([*names.values()][int(path[-1].key)])  # noqa: E731
        optimizer = build(name, arguments, rate, 0.0, decayed=None, roles=roles)
        return optimizer.update(params, optimizer.init(params), params)

    _, state = jax.eval_shape(update, params)
    if any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in jax.tree.leaves(state)):
        raise ValueError("it keeps a random key, which a checkpoint does not")


def _refused(name: str, arguments: Mapping[str, Any], key: str, error: Exception) -> UserError:
    why = first_line(error)
    with contextlib.suppress(Exception):
        _trace(name, arguments, 1.0)
        why = "it takes a number as learning rate, no schedule"
    key, given = (_beside(key), f" with {dict(arguments)}") if arguments else (key, "")
    return UserError(f"{key}: {name} cannot be used{given}: {why}")


def _beside(key: str) -> str:
    """The key of the arguments, beside that of the name."""
    return f"{key[: key.rfind('.') + 1]}arguments"


def _check_names(name: str, arguments: Mapping[str, Any], key: str) -> None:
    parameters = inspect.signature(find_optimizer(name)).parameters
    mask = mask_name(parameters)
    ours = {"learning_rate", mask, DIMENSIONS} | ({"weight_decay"} if mask else set())
    valid = [each for each in parameters if each not in ours]
    for each in arguments:
        if each not in valid:
            raise UserError(f"{_beside(key)}.{each}: {name} takes only {', '.join(valid)} here")


def joined(path: tuple) -> str:
    """The names of a path: "encoder/blocks/norm/scale"."""
    return "/".join(_keys(path))


def _keys(path: tuple) -> list[str]:
    return [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]


def mask_name(parameters: Mapping[str, Any]) -> str | None:
    """The name of an optimizer's parameter for the mask of weight decay, or None."""
    return next((name for name in MASKS if {name, "weight_decay"} <= parameters.keys()), None)


def _is_optimizer(found: Any) -> bool:
    kinds, parts = (types.FunctionType, functools.partial), ("_", "scale_by_")
    if not isinstance(found, kinds) or getattr(found, "__name__", "").startswith(parts):
        return False
    parameters = inspect.signature(found).parameters
    return "learning_rate" in parameters and "base_optimizer" not in parameters
