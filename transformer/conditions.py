"""Conditions that stand beside a key of a config class: with which values of other keys it has an effect."""

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True, eq=False)
class Condition:
    """That a key has an effect only where another key, or a property of the config, `on`, has one of `values`
    (with `but`: none of them), or is set if there are no values. Elsewhere a new run must leave the key at
    its default if it is `refused`. `reason` says in other words why a key has no effect."""

    on: str
    values: Collection[Any] = ()
    but: bool = False
    reason: str = ""
    refused: bool = True

    strict: ClassVar[bool] = False

    def holds(self, value: Any) -> bool:
        """Whether the key has an effect with this value of the other."""
        return (value in self.values) != self.but if self.values else bool(value)

    def why(self, value: Any) -> str:
        """Why the key has no effect with this value of the other."""
        return self.reason or f"with {self.on} {value!r}" if self.refused else ""

    @property
    def expected(self) -> str:
        """The condition in words."""
        if self.reason:
            return f"not {self.reason}"
        values = " or ".join(map(repr, self.values))
        return f"{'not' if self.but else 'only'} with {self.on} {values}".rstrip()


def only(on: str, *values: Any) -> Condition:
    """The condition that another key has one of these values, or is set."""
    return Condition(on, values)


def unless(on: str, *values: Any, reason: str = "") -> Condition:
    """The condition that another key has none of these values."""
    return Condition(on, values, but=True, reason=reason)


@dataclasses.dataclass(frozen=True, eq=False)
class FieldOf:
    """That a key is the `field` of some members of a `family`, the classes or functions that the key `on`
    names. With another member it has no effect; where `strict`, a config class refuses any value but the
    default, and otherwise a new run does, if it is `refused`."""

    on: str
    family: Mapping[str, Any]
    field: str
    strict: bool = True
    refused: bool = True

    def holds(self, value: str) -> bool:
        """Whether this member has the field."""
        return self.field in inspect.signature(self.family[value]).parameters

    def why(self, value: str) -> str:
        """That this member does not have the field, and which ones have it."""
        return f"with {self.on} {value!r}, only with {self._having}" if self.refused else ""

    @property
    def expected(self) -> str:
        """The condition in words."""
        return f"only with {self.on} {self._having}"

    @property
    def _having(self) -> str:
        return ", ".join(repr(name) for name in self.family if self.holds(name))
