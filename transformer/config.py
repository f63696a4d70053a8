"""Config dataclasses: conversion from and to nested mappings, bounds and meanings of keys.

A config class is a frozen dataclass whose fields are keys; a field that is itself a config class is a group
of keys. Each line has a key, its bound, its default and its meaning:

    d_model: Positive = 256  # width of the residual stream
    latent_dim: Annotated[Nonnegative, only("mixer", "latent")] = 0  # width of what is cached

The bound is part of the type, `Positive` is `Annotated[int, Bound("at least 1", 1)]`, and so is the condition
without which a key does nothing. The base class `Bounded` checks bounds, and `refuse_idle` conditions.
`transformer.config_help` describes keys.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from transformer.conditions import Condition, FieldOf
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
    """Base class of config classes, which checks the bounds of fields, whose they are, and combinations.

    Raises:
      UserError: a value out of bounds, of a field that a member of a family does not have, or not possible
        together with others.
    """

    checks: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Key -> what checks its combinations with others, where it does not have its default; a subclass adds
    its own to those of its base class. What concerns all values is checked in `__post_init__`, after this
    one."""

    def __post_init__(self) -> None:
        for name, bound in bounds_of(type(self)).items():
            value = getattr(self, name)
            if not bound.holds(value):
                raise bound.error(f"{name}: {value!r}; expected {bound.expected}")
        for name, why in without_effect(self, strict=True).items():
            if is_changed(self, name):
                raise UserError(f"{name}: {getattr(self, name)!r} {why}")
        for name, check in self.checks.items():
            if is_changed(self, name):
                check(self)

    def idle(self) -> dict[str, str]:
        """The keys that have no effect with the values of others: {key: "with ..."}. With the reason "" a key
        may have any value."""
        return without_effect(self)


def is_changed(config: Any, name: str) -> bool:
    """Whether a field does not have its default."""
    return getattr(config, name) != default_of(config.__dataclass_fields__[name])


def without_effect(config: Any, strict: bool = False) -> dict[str, str]:
    """The keys with a condition that does not hold, and why, by all conditions that are `strict` or not."""
    return {
        name: mark.why(value)
        for name, mark in marks_of(type(config), (Condition, FieldOf))  # type: ignore[arg-type]
        if mark.strict is strict and not mark.holds(value := getattr(config, mark.on))
    }


def bounds_of(cls: type) -> dict[str, Bound | OneOf | OnThisSystem]:
    """Field -> bound of a config class."""
    return dict(marks_of(cls, (Bound, OneOf, OnThisSystem)))


@functools.cache
def marks_of(cls: Any, kinds: tuple[type, ...]) -> list[tuple[str, Any]]:
    """(field, mark) for the marks of these kinds that stand beside the fields of a config class. A subclass
    that changes the default of a field inherits them."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        of_base = typing.get_type_hints(base, include_extras=True)
        hints |= {name: hint for name, hint in of_base.items() if typing.get_origin(hint) is Annotated}
    return [(n, mark) for n, hint in hints.items() for mark in hint.__metadata__ if isinstance(mark, kinds)]


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
    return f"{missing}: missing key; expected {describe_type(hints[missing])}"


def with_defaults(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the defaults of missing keys of `cls`, group by group (old run folders lack new keys).
    Keys without a default stay missing."""
    hints, filled = typing.get_type_hints(cls), dict(values)
    for field in dataclasses.fields(cls):
        name, default = field.name, default_of(field)
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
    """The keys that have no effect with the values of other keys: (path, value, default, why), by `idle` of
    each config class (see `Bounded`), which may also name keys of its groups, "data.source"; `outer` are
    those that outer groups name, by their paths."""
    own = config.idle() if hasattr(config, "idle") else {}
    reasons = outer | {path + key: why for key, why in own.items()}
    for field in dataclasses.fields(config):
        key, value = path + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from idle_keys(value, f"{key}.", **reasons)
        elif key in reasons:
            yield key, value, field.default, reasons[key]


def default_of(field: dataclasses.Field) -> Any:
    """The default of a field; MISSING if there is none."""
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
    if origin is typing.Literal and any(type(value) is type(item) and value == item for item in arguments):
        return value
    if origin is types.UnionType:  # X | None
        return None if value is None else _convert(arguments[0], value, path)
    if hint is float and (isinstance(value, float) or type(value) is int) and math.isfinite(value):
        return float(value)
    if hint is int and type(value) is int and value > LARGEST:
        raise UserError(f"{path}: {value!r}; expected at most {LARGEST:,}")
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
    return "a value that JSON has" if hint is Any else describe_type(hint)


def describe_type(hint: Any) -> str:
    """The values of a type, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is Mapping:
        return "a mapping"
    if origin is types.UnionType:
        return " or ".join("None" if item is types.NoneType else describe_type(item) for item in arguments)
    if origin is tuple:
        return f"a list of {describe_type(arguments[0])}"
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
