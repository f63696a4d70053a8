"""Config dataclasses: conversion from and to nested mappings, bounds and meanings of keys.

A config class is a frozen dataclass whose fields are keys; a field that is itself a config class is a group
of keys. Each line has a key, its bound, its default and its meaning:

    d_model: Positive = 256  # width of the residual stream

The bound is part of the type, here `Annotated[int, Bound("at least 1", 1)]`, and is checked by the base class
`Bounded`.
"""

import ast
import dataclasses
import functools
import inspect
import io
import json
import math
import textwrap
import tokenize
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from transformer.errors import UnknownMember, UserError, suggest
from transformer.run_folder import HERE, REMOTE

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Bound:
    """Finite numbers from `least` to `most` except those in `without`; `expected` describes them in words."""

    expected: str
    least: float = -math.inf
    most: float = math.inf
    without: tuple[float, ...] = ()
    error = UserError

    def holds(self, value: float) -> bool:
        """Whether a field may be `value`."""
        return self.least <= value <= self.most and value not in self.without and math.isfinite(value)


@dataclasses.dataclass(frozen=True, eq=False)
class OneOf:
    """`first`, or a key of the dictionary of a family, which is read at each check: a member that a program
    or a notebook adds is valid from then on."""

    family: Collection[str]
    first: str = ""
    error = UnknownMember

    @property
    def names(self) -> tuple[str, ...]:
        """All that a field may be, now."""
        return (self.first, *self.family) if self.first else tuple(self.family)

    @property
    def expected(self) -> str:
        """The names in words."""
        return "one of " + ", ".join(map(repr, self.names))

    def holds(self, value: str) -> bool:
        """Whether a field may be `value`."""
        return value in self.names


@dataclasses.dataclass(frozen=True)
class OnThisSystem:
    """Texts, or mappings with such texts, that name files, none of them by an address of another system."""

    expected = HERE
    error = UserError

    def holds(self, value: Any) -> bool:
        """Whether a field may be `value`."""
        return not REMOTE.search(value if isinstance(value, str) else json.dumps(to_values(value)))


LARGEST = 2**31 - 1
"""The largest whole number that a field may be: what is counted on devices has 32 bits."""

Place = Annotated[str, OnThisSystem()]
Positive = Annotated[int, Bound("at least 1", 1)]
Nonnegative = Annotated[int, Bound("0 or more", 0)]
PositiveFloat = Annotated[float, Bound("more than 0", 0, without=(0,))]
NonnegativeFloat = Annotated[float, Bound("0 or more", 0)]
Rate = Annotated[float, Bound("a rate in [0, 1)", 0, 1, without=(1,))]
Fraction = Annotated[float, Bound("a fraction in [0, 1]", 0, 1)]
PositiveFraction = Annotated[float, Bound("a fraction in (0, 1]", 0, 1, without=(0,))]


class Bounded:
    """Base class of config classes, which checks the bounds of fields.

    Subclasses check combinations of keys in their own `__post_init__`, after calling this one.

    Raises:
      UserError: a value out of bounds.
    """

    def __post_init__(self) -> None:
        for name, bound in bounds_of(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            if not bound.holds(value):
                raise bound.error(f"{name}: {value!r}; expected {bound.expected}")
            if isinstance(value, int) and value > LARGEST:
                raise UserError(f"{name}: {value!r}; expected at most {LARGEST:,}")


@functools.cache
def bounds_of(cls: type) -> dict[str, Bound | OneOf | OnThisSystem]:
    """Field -> bound of a config class. A subclass that changes the default of a field inherits its bound."""
    bounds: dict[str, Bound | OneOf | OnThisSystem] = {}
    for base in reversed(cls.__mro__):
        for name, hint in typing.get_type_hints(base, include_extras=True).items():
            if typing.get_origin(hint) is Annotated:
                (bounds[name],) = hint.__metadata__
    return bounds


def from_values(cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Builds the config class `cls` from nested mappings, checking every key and type.

    Missing keys take their defaults. Errors of the config classes are prefixed with the path of the group.

    Raises:
      UserError: an unknown key, a missing key without a default, a value of the wrong type or out of bounds,
        or an impossible combination.
    """
    values, hints = with_defaults(cls, values), typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if values.keys() != set(names):
        raise UserError(f"{path}.{_wrong_key(values, names, hints)}")
    converted = {name: _convert(hints[name], values[name], f"{path}.{name}") for name in names}
    try:
        return cls(**converted)
    except UserError as error:
        raise type(error)(f"{path}.{error}") from None


def _wrong_key(values: Mapping[str, Any], names: Sequence[str], hints: Mapping[str, Any]) -> str:
    """An error on the first unknown key, or on the first missing one."""
    for key in values:
        if key not in names:
            return f"{key}: unknown key; {suggest(key, names, 'valid keys: ')}"
    missing = next(name for name in names if name not in values)
    return f"{missing}: missing key; expected {_describe(hints[missing])}"


def with_defaults(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the defaults of missing keys of `cls`, group by group (old run folders lack new keys).
    Keys without a default stay missing."""
    hints, filled = typing.get_type_hints(cls), dict(values)
    for field in dataclasses.fields(cls):
        name, default = field.name, _default(field)
        if dataclasses.is_dataclass(hints[name]):
            if isinstance(group := filled.get(name, {}), Mapping):
                filled[name] = with_defaults(hints[name], group)
        elif name not in filled and default is not dataclasses.MISSING:
            filled[name] = to_values(default)
    return filled


def to_values(config: Any) -> Any:
    """The inverse of `from_values`: nested dictionaries and lists, as in JSON."""
    if dataclasses.is_dataclass(config):
        return {field.name: to_values(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): to_values(value) for key, value in config.items()}
    return [to_values(value) for value in config] if isinstance(config, (tuple, list)) else config


def refuse_idle(config: Any) -> None:
    """Checks that keys without effect have their defaults (see `idle_keys`).

    Raises:
      UserError: a key without effect was changed.
    """
    for key, value, default, why in idle_keys(config, "config."):
        if why and value != default:
            raise UserError(f"{key}: {value!r} does nothing {why}; leave it at {default!r}")


def idle_keys(config: Any, path: str = "", **outer: str) -> Iterator[tuple[str, Any, Any, str]]:
    """The keys that have no effect with the values of other keys: (path, value, default, why).

    A config class names them by a method `idle`, {key: "with ..."}, also those of its groups, "data.source";
    `outer` are those that outer groups name, by their paths. With the reason "" a key may have any value.
    """
    own = config.idle() if hasattr(config, "idle") else {}
    reasons = outer | {path + key: why for key, why in own.items()}
    for field in dataclasses.fields(config):
        key, value = path + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from idle_keys(value, f"{key}.", **reasons)
        elif key in reasons:
            yield key, value, field.default, reasons[key]


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a config class: "model.d_model", "int", 256, "width of the residual stream", "at least 1".

    The default is as in JSON, or None if there is none; the bound is "" if there is none.
    """

    name: str
    type: str
    default: Any
    meaning: str
    bound: str = ""


def describe_keys(cls: Any) -> tuple[Key, ...]:
    """All keys of a config class in order, with the paths of groups, defaults and meanings.

    A subclass that changes the default of a field inherits its meaning.
    """
    hints, bounds, keys = typing.get_type_hints(cls), bounds_of(cls), []
    meanings = {}
    for base in reversed(cls.__mro__[:-1]):  # but `object`
        meanings.update(_comments(base))
    for field in dataclasses.fields(cls):
        hint, default = hints[field.name], _default(field)
        if dataclasses.is_dataclass(hint):
            group: Any = hint
            keys += [
                dataclasses.replace(key, name=f"{field.name}.{key.name}") for key in describe_keys(group)
            ]
        else:
            default = None if default is dataclasses.MISSING else to_values(default)
            bound = bounds[field.name].expected if field.name in bounds else ""
            keys.append(Key(field.name, _describe(hint), default, meanings.get(field.name, ""), bound))
    return tuple(keys)


@functools.cache
def _comments(cls: type) -> dict[str, str]:
    """The comment on each field in the source of a class, at the end of its line or on the line above."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comment_at = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = comment_at.get(node.end_lineno or node.lineno, "")
            above = node.lineno - 1
            if not comment and lines[above - 1].strip() == comment_at.get(above):
                comment = comment_at[above]
            if comment:
                found[node.target.id] = comment.lstrip("# ")
    return found


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_values(hint, value, path)  # type: ignore[arg-type]
    if origin is Mapping and isinstance(value, Mapping):
        items = {key: _convert(arguments[1], x, f"{path}.{key}") for key, x in to_values(value).items()}
        return types.MappingProxyType(items)
    if origin is tuple and isinstance(value, (tuple, list)):
        return tuple(_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is typing.Literal and any(type(value) is type(each) and value == each for each in arguments):
        return value
    if origin is types.UnionType:  # X | None
        return None if value is None else _convert(arguments[0], value, path)
    if hint is float and (isinstance(value, float) or type(value) is int) and math.isfinite(value):
        return float(value)
    if (hint is Any and _is_json(value)) or (hint in (str, int, bool) and type(value) is hint):
        return value
    raise UserError(f"{path}: {value!r} ({type(value).__name__}); expected {_expected(hint, value)}")


def _is_json(value: Any) -> bool:
    """Whether a value of any type can be written to a run's folder."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _expected(hint: Any, value: Any) -> str:
    """The expected values, in words."""
    if hint is float and isinstance(value, float):
        return "a finite number"
    return "a value that JSON has" if hint is Any else _describe(hint)


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is Mapping:
        return "a mapping"
    if origin is types.UnionType:
        return " or ".join("None" if each is types.NoneType else _describe(each) for each in arguments)
    if origin is tuple:
        return f"a list of {_describe(arguments[0])}"
    return "a group of keys" if dataclasses.is_dataclass(hint) else hint.__name__


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model": {"d_model": 8}} -> {"model.d_model": 8}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
