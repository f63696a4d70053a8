"""From a loose nested mapping to frozen dataclasses, once, at the edge of the program."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from transformer.errors import UserError

T = TypeVar("T")


def freeze(cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Builds the dataclass `cls` from `values`, group by group, checking every key and type.

    A field whose annotation is itself a dataclass is a group and is frozen in turn; every key must be
    given and every given key must exist. The dataclass's own `__post_init__` checks the values
    (raising `UserError`); its message is prefixed with the group's path.

    Raises:
      UserError: an unknown or missing key, a value of the wrong type, or an impossible combination.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(names)}"
            raise UserError(f"{path}.{key}: unknown key; {hint}")
    missing = [name for name in names if name not in values]
    if missing:
        raise UserError(f"{path}.{missing[0]}: missing key; expected {_describe(hints[missing[0]])}")
    built = {name: _convert(hints[name], values[name], f"{path}.{name}") for name in names}
    try:
        return cls(**built)
    except UserError as error:
        raise UserError(f"{path}.{error}") from None


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(f"{path}: {value!r} is not a group of keys")
        return freeze(hint, value, path)  # type: ignore[arg-type]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _convert(inner, value, path)
    if origin is tuple and isinstance(value, (tuple, list)):
        return tuple(_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is typing.Literal:
        if value in arguments:
            return value
    elif hint is Any:
        return value
    elif origin in (dict, Mapping) or hint is Mapping:
        if isinstance(value, Mapping):
            return types.MappingProxyType({key: _thaw(item) for key, item in value.items()})
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"{path}: {value!r} is {type(value).__name__}; expected {_describe(hint)}")


def _thaw(value: Any) -> Any:
    return {key: _thaw(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)
