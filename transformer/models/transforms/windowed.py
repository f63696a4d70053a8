"""Models whose attention reaches less far, with the same parameters."""

import dataclasses
from typing import Any

from transformer.errors import UserError
from transformer.layers.mixers import MIXERS


def windowed(config: Any, size: int) -> Any:
    """The `StackConfig` in which no layer attends to more than `size` tokens to one side: full attention
    becomes a window, a wider window gets as narrow. Layers without patterns of attention stay as they are.

    Raises:
      UserError: a layer with another pattern; or no layer attends to more tokens.
    """
    kinds = {name: _windowed(kind, size, name) for name, kind in config.kinds.items()}
    if not any(kinds.values()):
        raise UserError(f"{size}; no layer attends to more tokens than that")
    if not config.layers:
        return dataclasses.replace(config, **kinds[""])
    return dataclasses.replace(
        config, layer_kinds={name: {**config.layer_kinds[name], **keys} for name, keys in kinds.items()}
    )


def _windowed(kind: Any, size: int, name: str) -> dict[str, Any]:
    """The keys that change in a kind of layers."""
    if "pattern" not in MIXERS[kind.mixer].__dataclass_fields__:
        return {}
    if kind.pattern not in ("full", "window") or (kind.pattern == "window" and kind.pattern_extra > 1):
        key = f"model.layer_kinds.{name}.pattern" if name else "model.pattern"
        raise UserError(f"{size}; expected {key} 'full', or 'window' without dilation")
    if kind.pattern == "window" and kind.pattern_size <= size:
        return {}
    return {"pattern": "window", "pattern_size": size, "pattern_extra": 1}
