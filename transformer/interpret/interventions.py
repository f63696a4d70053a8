"""Edits of what a model computes, by path, in evaluation, scoring and generation."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import (
    OVER_KEYS,
    apply,
    check_matched,
    matches,
    visiting,
)

Values = jax.Array | np.ndarray | float | Mapping[str, jax.Array]
"""An array or a number, or arrays by path, as `record` returns them."""

Index = int | Sequence[int] | None
"""Numbers from 0; None: all."""

Change = Callable[[str, jax.Array, jax.Array | None], Any]
"""(path, x, positions of the tokens or None) -> the new value, broadcastable to x."""


@dataclasses.dataclass(frozen=True, eq=False)
class Edit:
    """Replaces the values whose paths fit a pattern by those of `change`; made by `zero`, `patch`, ...

    `positions` are those of tokens in their texts (of scores and weights, of queries), whatever the padding
    and whether they are read at once or step by step; values outside of blocks have none. `heads` are those
    of (b, t, h, k) or (b, h, t, s); `units` are numbers on the last axis.
    """

    pattern: str
    change: Change
    positions: Any = None
    heads: Index = None
    units: Index = None

    def __call__(self, path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array:
        """The edited value, of the shape and type of x."""
        value = jnp.asarray(self.change(path, x, positions_bt))
        try:
            new = jnp.broadcast_to(value, x.shape).astype(x.dtype)
        except ValueError:
            raise UserError(f"{path}: a value of shape {value.shape}; expected {x.shape}") from None
        where = self._where(path, x, positions_bt)
        return new if where is None else jnp.where(where, new, x)

    def _where(self, path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array | None:
        over_keys = is_over_keys(path)
        masks = []
        if self.positions is not None:
            if positions_bt is None or positions_bt.shape[1] != x.shape[1 + over_keys]:
                raise UserError(f"positions: {path} has none of the text; expected the path of a block")
            chosen_bt = jnp.isin(positions_bt, jnp.asarray(self.positions))
            masks.append(jnp.expand_dims(chosen_bt, (1, 3) if over_keys else tuple(range(2, x.ndim))))
        if self.heads is not None:
            if x.ndim != 4:
                raise UserError(f"heads: {path} of shape {x.shape} has none")
            axis = 1 if over_keys else 2
            masks.append(_chosen("heads", path, self.heads, x.shape[axis]).reshape((-1,) + (1,) * (3 - axis)))
        if self.units is not None:
            masks.append(_chosen("units", path, self.units, x.shape[-1]))
        where = None
        for mask in masks:
            where = mask if where is None else where & mask
        return where


def zero(pattern: str, **where: Any) -> Edit:
    """Sets values to 0: zero ablation. `where`: `positions`, `heads` and `units` of `Edit`."""
    return Edit(pattern, lambda path, x, positions_bt: 0.0, **where)


def patch(pattern: str, values: Values, **where: Any) -> Edit:
    """Sets values to those of another run, (b, t, ...) or (1, t, ...): activation patching.

    A token gets the value of its position; those behind the t positions keep their own.
    Source: Vig et al. 2020; Meng et al. 2022, "Locating and editing factual associations in GPT", section 2.
    """
    return Edit(
        pattern, lambda path, x, positions_bt: _aligned(_of(values, path), path, x, positions_bt), **where
    )


def mean(pattern: str, values: Values, **where: Any) -> Edit:
    """Sets values to the mean of others over rows and positions (of scores and weights, over rows): mean
    ablation. Source: Wang et al. 2023, "Interpretability in the wild", section 2.2."""

    def change(path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array:
        return jnp.mean(jnp.asarray(_of(values, path)), axis=0 if is_over_keys(path) else (0, 1))

    return Edit(pattern, change, **where)


def resample(pattern: str, values: Values, seed: int = 0, **where: Any) -> Edit:
    """Sets the values of each row to those of a random row of others, (n, t, ...): resample ablation.
    Source: Chan et al. 2022, "Causal scrubbing"."""

    def change(path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array:
        rows_nt = jnp.asarray(_of(values, path))
        drawn_b = np.random.default_rng(seed).integers(len(rows_nt), size=x.shape[0])
        return _aligned(rows_nt[drawn_b], path, x, positions_bt)

    return Edit(pattern, change, **where)


def steer(pattern: str, direction: Values, scale: float = 1.0, **where: Any) -> Edit:
    """Adds scale x direction, (d,) or another shape that is broadcast.
    Source: Turner et al. 2023, "Activation addition"."""
    return Edit(pattern, lambda path, x, _: x + scale * jnp.asarray(_of(direction, path)), **where)


class Interventions(contextlib.AbstractContextManager):
    """A context in which models are edited, whatever calls them: `apply`, evaluators, scores, generation.

        with Interventions(zero("blocks/1/attention/output/input", heads=2)):
            texts = next(run.experiment.predict(params, ["def "]))

    The edits of a path are made in order. Programs are compiled once for an object, and take the arrays of
    edits as constants. Models must be `unrolled`. Leaving the context raises `UserError` if a model ran and
    the path of an edit was not in it.
    """

    def __init__(self, *edits: Edit) -> None:
        self.edits = edits
        self._seen: set[str] = set()
        self._contexts: list[contextlib.AbstractContextManager] = []

    def __enter__(self) -> "Interventions":
        context = visiting(self)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._contexts.pop().__exit__(kind, error, trace)
        if kind is None and self._seen:
            check_matched((edit.pattern for edit in self.edits), sorted(self._seen))

    def wants(self, path: str) -> bool:
        """Whether one of the edits is of this path."""
        self._seen.add(path)
        return any(matches(edit.pattern, path) for edit in self.edits)

    def visit(self, path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array:
        """The value after the edits."""
        for edit in self.edits:
            if matches(edit.pattern, path):
                x = edit(path, x, positions_bt)
        return x


def logits(model: Any, params: Any, inputs: Any, *edits: Edit, **options: Any) -> jax.Array:
    """The output of a model with edits; float32 logits (b, t, v) of a decoder. `inputs` and `options` as for
    `record`. Raises as `Interventions`."""
    with Interventions(*edits) if edits else contextlib.nullcontext():
        return apply(model, params, inputs, **options)


def is_over_keys(path: str) -> bool:
    """Whether the value of a path is (b, h, t, s)."""
    return path.rpartition("/")[2] in OVER_KEYS


def _of(values: Values, path: str) -> Any:
    if not isinstance(values, Mapping):
        return values
    if path not in values:
        raise UserError(f"{path}: no value of it among those of {', '.join(values)}")
    return values[path]


def _aligned(values: Any, path: str, x: jax.Array, positions_bt: jax.Array | None) -> Any:
    """The values (b, t', ...) at the positions of x (b, t, ...), which keeps its own behind them."""
    values = jnp.asarray(values)
    if positions_bt is None or positions_bt.shape[1] != x.shape[1]:
        return values
    if values.ndim != x.ndim or is_over_keys(path):
        return values
    if values.shape[0] not in (1, x.shape[0]):
        raise UserError(f"{path}: values of {values.shape[0]} rows; the model reads {x.shape[0]}")
    places_bt = jnp.broadcast_to(positions_bt, x.shape[:2]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
    rows = jnp.broadcast_to(values, (x.shape[0], *values.shape[1:]))
    values_bt = jnp.take_along_axis(rows, jnp.minimum(places_bt, values.shape[1] - 1), axis=1)
    return jnp.where(places_bt < values.shape[1], values_bt, x)


def _chosen(name: str, path: str, numbers: Index, count: int) -> jax.Array:
    """Which of `count` are chosen, (count,)."""
    numbers_n = np.atleast_1d(np.asarray(numbers))
    if bad := [int(i) for i in numbers_n if not 0 <= i < count]:
        raise UserError(f"{name}: {bad[0]}; {path} has {count}, counted from 0")
    return jnp.isin(jnp.arange(count), numbers_n)
