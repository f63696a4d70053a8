"""Cautious optimizers, which change parameters only where the update agrees with the gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.training.optim.layerwise import Factory
from transformer.training.optim.roles import Roles
from transformer.training.optim.schedules import Schedule
from transformer.training.state import Params


def cautious(factory: Factory, mask: str | None, roles: Roles) -> Factory:
    """The optimizer that changes parameters only where its update agrees with the gradient:

    u <- u m / max(mean(m), 0.001), with m = 1 where u g < 0 and 0 elsewhere, and the mean over each matrix.

    `mask` is the name of its mask of weight decay, which is applied in addition; None: it has none.
    Source: Liang et al. 2024 (Cautious optimizers), algorithm 1, with the scale of the authors' code.
    """

    @functools.wraps(factory)
    def make(learning_rate: Schedule, **arguments: Any) -> optax.GradientTransformation:
        decay, decayed = (arguments.pop(key, None) for key in ("weight_decay", mask)) if mask else (0, None)
        plain = factory(learning_rate=learning_rate, **arguments, **({"weight_decay": 0.0} if mask else {}))

        def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
            changes, state = plain.update(updates, state, params)
            agreeing = functools.partial(_agreeing, roles)
            return jax.tree_util.tree_map_with_path(agreeing, changes, updates), state

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
