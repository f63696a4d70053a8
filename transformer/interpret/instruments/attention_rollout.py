"""Attention rollout: how much of each token is in each, by attention and the residual stream."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import recording
from transformer.interpret.instruments.base import Subject, Table


def attention_rollout(weights: Sequence[jax.Array | np.ndarray]) -> jax.Array:
    """(n, b, t, s): the product B_i ... B_1 up to each layer i, with B = (A + I) / 2 and A the attention
    weights (b, h, t, s) of a layer, averaged over heads: the sum over all paths from token s to token t, of
    which each layer is by attention or by the residual stream. Rows add up to 1, as those of A do.

    Source: Abnar & Zuidema 2020, "Quantifying attention flow in Transformers", section 3.
    """
    rollout_bts = jnp.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    products = []
    for weights_bhts in weights:
        mixed_bts = (jnp.mean(weights_bhts, axis=1) + jnp.eye(weights_bhts.shape[-1])) / 2
        products.append(rollout_bts := mixed_bts @ rollout_bts)
    return jnp.stack(products)


def recorded_weights(subject: Subject) -> list[jax.Array]:
    """The attention weights (1, h, t, t) of each layer over --prompt. Raises `UserError` if a layer has
    none."""
    values = recording(subject.prompt.forward, "**")(subject.params)[1]
    weights = [x for path, x in values.items() if path.endswith("/attention/weights")]
    layers = {path for path in values if re.fullmatch(r"(.*/)?blocks/\d+", path)}
    if len(weights) < len(layers):
        count = f"{len(weights)} of {len(layers)} layers have attention weights"
        raise UserError(f"attention_rollout: {count}; expected all, as with model.mixer=full")
    return weights


def table(subject: Subject) -> Table:
    """The rollout of all layers, a row for each token; of images its mean over the tokens that are pooled, a
    cell for each patch."""
    reading: Any = subject.prompt
    rollout_ts = np.asarray(attention_rollout(recorded_weights(subject))[-1, 0], np.float64)
    if reading.grid is None:
        title = "how much of each token (column) is in each (row), by attention rollout"
        return Table(title, rollout_ts, reading.names, reading.names)
    rows, columns = reading.grid
    before = rollout_ts.shape[-1] - rows * columns  # a class token, which alone is pooled
    pooled_s = rollout_ts[0] if before else rollout_ts.mean(axis=0)
    grid_rc = pooled_s[before:].reshape(rows, columns)
    title = f"how much of each patch is pooled, by attention rollout; together {grid_rc.sum():.3f}"
    return Table(title, grid_rc, [f"row_{i}" for i in range(rows)], [f"column_{i}" for i in range(columns)])
