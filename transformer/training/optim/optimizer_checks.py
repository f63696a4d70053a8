"""Checks of an `OptimizerConfig`: its keys together, its schedule, and by a traced update its arguments."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError, first_line
from transformer.training.optim.optax_optimizers import (
    DIMENSIONS,
    build,
    find_optimizer,
    is_schedule_free,
    mask_name,
)
from transformer.training.optim.roles import role
from transformer.training.optim.schedules import SCHEDULES, Schedule
from transformer.training.state import Params

ADAM_RATE = "adam_learning_rate"

CHECKED_STEPS = 100
"""Steps, from the first to the last, for which a schedule is checked before training."""


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
    key, suffix = (_beside(key), f" with {dict(arguments)}") if arguments else (key, "")
    return UserError(f"{key}: {name} cannot be used{suffix}: {why}")


def _beside(key: str) -> str:
    """The key of the arguments, beside that of the name."""
    return f"{key[: key.rfind('.') + 1]}arguments"


def _check_names(name: str, arguments: Mapping[str, Any], key: str) -> None:
    parameters = inspect.signature(find_optimizer(name)).parameters
    mask = mask_name(parameters)
    ours = {"learning_rate", mask, DIMENSIONS} | ({"weight_decay"} if mask else set())
    valid = [argument for argument in parameters if argument not in ours]
    for argument in arguments:
        if argument not in valid:
            raise UserError(f"{_beside(key)}.{argument}: {name} takes only {', '.join(valid)} here")


def _check_name(c: Any) -> None:
    parameters = inspect.signature(find_optimizer(c.name)).parameters
    if c.weight_decay > 0 and "weight_decay" in parameters and mask_name(parameters) is None:
        raise UserError(_unmasked(c))
    if c.averages_itself:
        _check_schedule_free(c, parameters)
    check_arguments(c.name, c.arguments)


def _check_schedule(c: Any) -> None:
    if c.schedule == "wsd" and c.decay_steps == 0:
        raise UserError("decay_steps: 0 steps of decay; the wsd schedule needs at least 1")


def _check_schedule_arguments(c: Any) -> None:
    fields = {field.name for field in dataclasses.fields(c)}
    own = [*inspect.signature(SCHEDULES[c.schedule]).parameters][2:]
    valid = [name for name in own if name not in fields]
    for key in c.schedule_arguments:
        if key not in valid:
            problem = f"takes only {', '.join(valid)}" if valid else "takes none"
            raise UserError(f"schedule_arguments.{key}: {c.schedule} {problem}")


def _unmasked(c: Any) -> str:
    return (
        f"weight_decay: {c.weight_decay} cannot leave out biases and norms: {c.name} takes "
        f"no mask. Give it in optimizer.arguments for all parameters, and 0 here"
    )


def _check_rules(c: Any) -> None:
    for i, rule in enumerate(c.rules):
        if rule.optimizer is not None:
            find_optimizer(rule.optimizer, key := f"rules[{i}].optimizer")
            if is_schedule_free(rule.optimizer):
                raise UserError(f"{key}: {rule.optimizer} is for all parameters, by name")
            check_arguments(rule.optimizer, rule.arguments, key)


def _check_adam_rate(c: Any) -> None:
    if not c.is_muon:
        raise UserError(
            f"adam_learning_rate: {c.adam_learning_rate}, but {c.name} leaves nothing to Adam; "
            "expected 0 here"
        )
    if ADAM_RATE in c.arguments:
        raise UserError(f"arguments.{ADAM_RATE}: there is adam_learning_rate already; give one of them")
    if not c.learning_rate:
        raise UserError(f"adam_learning_rate: {c.adam_learning_rate} with learning_rate 0; expected 0")


def _check_schedule_free(c: Any, parameters: Mapping[str, Any]) -> None:
    if c.ema_decay:
        raise UserError(f"ema_decay: {c.ema_decay} with {c.name}, which has its own average; use 0")
    if c.has_rules:
        raise UserError(
            f"name: {c.name} averages all parameters at one rate; expected layer_decay 1, "
            "frozen_layers 0, train_only '', embedding_weight_decay 0 and no rules"
        )
    b1 = c.arguments.get("b1", parameters["b1"].default)
    if isinstance(b1, (int, float)) and not 0 < b1 <= 1:
        raise UserError(f"arguments.b1: {b1}; {c.name} interpolates by it: expected it in (0, 1]")


CHECKS: dict[str, Callable[[Any], None]] = {
    "schedule": _check_schedule,
    "name": _check_name,
    "arguments": _check_name,
    "schedule_arguments": _check_schedule_arguments,
    "adam_learning_rate": _check_adam_rate,
    "rules": _check_rules,
}
"""See `transformer.config.Bounded.checks`; of an `OptimizerConfig`."""


def check_length(config: Any, steps: int) -> None:
    """Raises `UserError` for a schedule with a decay that does not end with the run."""
    decay = config.shape.keywords.get("decay_steps")
    if decay is not None and config.warmup_steps + decay > steps:
        raise UserError(
            f"optimizer.warmup_steps: {config.warmup_steps} and decay_steps {decay} "
            f"do not fit the {config.schedule} schedule into train.steps {steps}"
        )


def check_numbers(config: Any, shape: Schedule, steps: int) -> None:
    """Raises `UserError` for a schedule that does not give numbers from 0 on."""
    for count in np.linspace(0, steps - 1, CHECKED_STEPS).astype(int).tolist():
        with jax.ensure_compile_time_eval():  # a run may make its optimizer while its state is traced
            rate = np.asarray(shape(count))
        if rate.ndim or rate.dtype == object or not 0 <= rate < np.inf:
            why = f"{config.schedule!r} gives {rate} for step {count + 1}"
            raise UserError(f"optimizer.schedule: {why}; expected a fraction of the peak, 0 or more")
