"""Layers of several kinds: configs of one kind each, and the trained length of their positions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.conditions import FieldOf
from transformer.config import from_values, marks_of, without_effect
from transformer.errors import UserError, suggest
from transformer.layers.attention.positions import POSITIONS

OF_LENGTH = ("yarn", "yarn_exact", "llama3")
"""Scalings of positions that depend on the trained length."""


def kinds(config: Any, per_layer: Sequence[str]) -> dict[str, Any]:
    """Kind of layers -> config of a stack of only this kind; `per_layer` are the keys that it may have."""
    return {name: _kind(config, name, per_layer) for name in dict.fromkeys(config.layers)}


def _kind(config: Any, name: str, per_layer: Sequence[str]) -> Any:
    overrides, path = config.layer_kinds[name], f"layer_kinds.{name}"
    if not isinstance(overrides, Mapping):
        raise UserError(f"{path}: {overrides!r}; expected a group of keys")
    for key in overrides:
        if key not in per_layer:
            raise UserError(f"{path}.{key}: not a key of one layer; {suggest(key, per_layer)}")
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    own.pop("value_embeddings", None)
    values = own | {"layers": (), "layer_kinds": {}, "share_position": False} | dict(overrides)
    # A kind does not inherit keys that its mixer or position encoding does not have.
    for key, of in marks_of(type(config), (FieldOf,)):  # type: ignore[arg-type]
        member = values[of.on]
        if of.strict and key not in overrides and member in of.family and not of.holds(member):
            values[key] = config.__dataclass_fields__[key].default
    if values["position_scaling"] == "none" and "position_factor" not in overrides:
        values["position_factor"] = 1.0
    return from_values(type(config), values, path)


def check_kinds(config: Any) -> None:
    """Raises `UserError` for layers of a kind that there is not, or a kind that no layer is of or that has
    impossible keys."""
    for name in config.layers:
        if name not in config.layer_kinds:
            hint = suggest(name, config.layer_kinds) if config.layer_kinds else "define it there"
            raise UserError(f"layers: {name!r} is not a kind of layer_kinds; {hint}")
    for name in config.layer_kinds:
        if name in ("attention", "cross_attention", "feed_forward"):
            raise UserError(
                f"layer_kinds.{name}: parameters of a part of a layer have this name; choose another"
            )
        if name not in config.layers:
            raise UserError(f"layer_kinds.{name}: no layer is of this kind; name it in layers")
    for name, kind in config.kinds.items():
        if POSITIONS[kind.position].has("embed") and kind.position != config.position:
            raise UserError(
                f"layer_kinds.{name}.position: {kind.position!r} is added to embeddings, before all "
                f"layers; set position"
            )
        idle = without_effect(kind)
        for key, value in config.layer_kinds[name].items():
            if key in idle:
                raise UserError(f"layer_kinds.{name}.{key}: {value!r} does nothing {idle[key]}")


def with_kinds(keys: dict[str, Any], config: Any, per_layer: Sequence[str]) -> dict[str, Any]:
    """The keys that a function depends on (see `ModelConfig.function`) with those of each kind, in place of
    `layer_kinds`, and the trained length of positions."""
    keys_of_run = keys | trained_length(config)
    for name, kind in config.kinds.items() if keys_of_run.pop("layer_kinds") else ():
        own = {key: value for key, value in kind.function().items() if key in per_layer}
        keys_of_run |= {f"layer_kinds.{name}.{key}": value for key, value in own.items()}
    return keys_of_run


def trained_length(config: Any) -> dict[str, float]:
    """The trained length of positions, by its key; {} if they do not depend on it."""
    length = config.position_original_length or config.max_length / config.position_factor
    whole = int(length) if length == int(length) else length
    return {"position_original_length": whole} if config.position_scaling in OF_LENGTH else {}


def settled(config: Any) -> dict[str, Any]:
    """The trained lengths of a config that are whole numbers (see `ModelConfig.settled`)."""

    def of(kind: Any) -> dict[str, int]:
        return {key: value for key, value in trained_length(kind).items() if isinstance(value, int)}

    kinds = {name: {**keys, **of(config.kinds[name])} for name, keys in config.layer_kinds.items()}
    return of(config) | ({"layer_kinds": kinds} if kinds else {})
