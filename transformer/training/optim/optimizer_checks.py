"""Checks of the name of an optimizer and its arguments, by a toy update that is only traced."""

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.errors import UserError, first_line
from transformer.training.optim.optax_optimizers import DIMENSIONS, build, find_optimizer, mask_name
from transformer.training.optim.roles import role
from transformer.training.state import Params


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
