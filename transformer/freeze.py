"""From a loose nested mapping to frozen dataclasses, once, at the edge of the program."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from transformer.errors import UserError

T = TypeVar("T")


def freeze(cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Builds the dataclass `cls` from `values`, group by group, checking every key and type.

    A field whose annotation is itself a dataclass is a group and is frozen in turn. Every given key must
    exist; one that is not given takes the dataclass's default. The dataclass's own `__post_init__` checks the
    values (raising `UserError`); its message is prefixed with the group's path.

    Raises:
      UserError: an unknown key, a missing one that has no default, a value of the wrong type, or an
        impossible combination.
    """
    values = with_defaults(cls, values)
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise UserError(f"{path}.{key}: unknown key; {suggest(key, names, 'valid keys: ')}")
    missing = [name for name in names if name not in values]
    if missing:
        raise UserError(f"{path}.{missing[0]}: missing key; expected {_describe(hints[missing[0]])}")
    built = {name: _convert(hints[name], values[name], f"{path}.{name}") for name in names}
    try:
        return cls(**built)
    except UserError as error:
        raise UserError(f"{path}.{error}") from None


def with_defaults(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the default of each key of `cls` that they lack, group by group: a run folder is older
    than the newest keys. A key without a default, or a group that has one, stays missing."""
    hints, filled = typing.get_type_hints(cls), dict(values)
    for field in dataclasses.fields(cls):
        group, given = hints[field.name], filled.get(field.name, {})
        if dataclasses.is_dataclass(group) and isinstance(given, Mapping):
            inner = with_defaults(group, given)
            if field.name in values or all(key.name in inner for key in dataclasses.fields(group)):
                filled[field.name] = inner
        elif field.name in values:
            continue
        elif field.default is not dataclasses.MISSING:
            filled[field.name] = thaw(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            filled[field.name] = thaw(field.default_factory())
    return filled


def refuse_idle(config: Any, path: str = "config") -> None:
    """Refuses keys that nothing reads because of what other keys say, where they are not left at their
    default. A group says which these are by a method `idle`, {key: "with ..."}.

    Raises:
      UserError: there is one.
    """
    reasons = config.idle() if hasattr(config, "idle") else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            refuse_idle(value, f"{path}.{field.name}")
        elif field.name in reasons and value != field.default:
            why = f"{value!r} does nothing {reasons[field.name]}"
            raise UserError(f"{path}.{field.name}: {why}; leave it at {field.default!r}")


def thaw(config: Any) -> Any:
    """The inverse of `freeze`: nested dictionaries and lists, as JSON has them."""
    if dataclasses.is_dataclass(config):
        return {field.name: thaw(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: thaw(value) for key, value in config.items()}
    return [thaw(value) for value in config] if isinstance(config, (tuple, list)) else config


def suggest(name: Any, valid: Iterable[str], otherwise: str = "expected one of ") -> str:
    """The end of an error about an unknown name: the one that was meant, or all that are valid."""
    near = difflib.get_close_matches(str(name), valid := list(valid), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise + ", ".join(valid)


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return freeze(hint, value, path)  # type: ignore[arg-type]
    elif origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _convert(inner, value, path)
    elif origin is tuple:
        if isinstance(value, (tuple, list)):
            return tuple(_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    elif origin is typing.Literal:
        if value in arguments:
            return value
    elif origin is Mapping:
        if isinstance(value, Mapping):
            return types.MappingProxyType(thaw(value))
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"{path}: {value!r} ({type(value).__name__}); expected {_describe(hint)}")


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin is Mapping:
        return "a mapping"
    if origin is tuple:
        return f"a list of {_describe(arguments[0])}"
    if origin is not None:
        return " or ".join("None" if choice is type(None) else _describe(choice) for choice in arguments)
    return "a group of keys" if dataclasses.is_dataclass(hint) else hint.__name__
