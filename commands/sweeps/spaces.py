"""Searches: what trials may differ in, as ranges and choices of config keys. In a config file:

def search():
    return {
        "optimizer.learning_rate": "log:1e-4..1e-2",
        "model.num_layers": "2..6",
        "model.d_model,model.d_ff": "64:256,128:512",
        "model.feed_forward": ["gelu", "swiglu"],
    }
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from commands.sweeps.algebra import Setting, as_overrides, over, product, read_sweep
from transformer.errors import UserError

T = TypeVar("T")

DIGITS = 4
"""Significant digits of the numbers that are drawn from a range."""

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")

COMBINATIONS = 256
"""With how many values of the others a value is tried before it is refused."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, integers if `whole`; they, or if `log` their logarithms, are uniform."""

    name: str
    text: str
    low: float
    high: float
    log: bool
    whole: bool

    @property
    def extremes(self) -> list[Setting]:
        """The settings to check: if both ends are valid, so is what is between them."""
        return [self.setting(self.low), self.setting(self.high)]

    def setting(self, value: float) -> Setting:
        """The key with a value of `DIGITS` significant digits, which is still in the range."""
        if self.whole:
            return {self.name: int(value)}
        return {self.name: min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)}


@dataclasses.dataclass(frozen=True)
class Choices:
    """Values of a key, or of several that change together, by their text."""

    name: str
    text: str
    settings: Mapping[str, Setting]

    @property
    def extremes(self) -> list[Setting]:
        """The settings to check: all."""
        return [*self.settings.values()]

    def setting(self, value: str) -> Setting:
        """The keys with the values of this text."""
        return self.settings[value]


Dimension = Range | Choices


def read_space(texts: Mapping[str, Any] | Sequence[str], types: Mapping[str, str]) -> list[Dimension]:
    """The dimensions in ["KEY=LOW..HIGH", ...], or in {"KEY": "LOW..HIGH" or [value, ...]}. The `types` of
    keys, "int" or "float", say whether a range is one of integers; for another key its ends do.

    Raises:
      UserError: another form, an empty range, the logarithm of 0, or a key in two dimensions.
    """
    pairs = texts.items() if isinstance(texts, Mapping) else (text.partition("=")[::2] for text in texts)
    space = [_read(str(name), values, types) for name, values in pairs]
    keys = [key for dimension in space for key in dimension.extremes[0]]
    if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
        raise UserError(f"--search: {twice[0]} is in two of the searches")
    return space


def _read(name: str, values: Any, types: Mapping[str, str]) -> Dimension:
    text = f"{name}={values}"
    match = RANGE.fullmatch(values) if isinstance(values, str) and name and "," not in name else None
    if match:
        log, low, high = match.groups()
        return _range(name, text, bool(log), low, high, types.get(name, ""))
    try:
        settings = over(name, values) if isinstance(values, (list, tuple)) else read_sweep(text)
    except UserError:
        settings = []
    if len(settings) < 2:
        raise UserError(
            f"--search: {text!r}; expected KEY=LOW..HIGH, KEY=log:LOW..HIGH, KEY=VALUE,VALUE or "
            "KEY,KEY=VALUE:VALUE,VALUE:VALUE, of two values at least"
        )
    by_text = {":".join(value for _, value in as_overrides(setting)): setting for setting in settings}
    if len(by_text) < len(settings):
        raise UserError(f"--search: {text!r}; two of the values are the same")
    return Choices(name, text, by_text)


def _range(name: str, text: str, log: bool, low: str, high: str, kind: str) -> Range:
    ends = float(low), float(high)
    whole = kind.startswith("int") or (
        not kind.startswith("float") and all(end.lstrip("+-").isdigit() for end in (low, high))
    )
    if whole and not all(end.is_integer() for end in ends):
        raise UserError(f"--search: {text!r}; expected whole numbers, as {name} is one")
    if not ends[0] < ends[1]:
        raise UserError(f"--search: {text!r} is empty; expected LOW..HIGH with LOW below HIGH")
    if log and ends[0] <= 0:
        raise UserError(f"--search: {text!r} takes the logarithm of {low}; expected numbers above 0")
    return Range(name, text, *ends, log, whole)


def check_space(space: Sequence[Dimension], check: Callable[[Setting], T]) -> list[T]:
    """Calls `check` with the extremes of each dimension, alone and, where it refuses that, together with
    those of the others: keys may fit together only. Returns what it returned for each.

    Raises:
      UserError: a value that `check` always refuses, for the reason that it gave first.
    """
    results = []
    for dimension in space:
        rest = [[{}, *further.extremes] for further in space if further is not dimension]
        for setting in dimension.extremes:
            first_error = ""
            for settings in itertools.islice(product([setting], *rest), COMBINATIONS):
                try:
                    results.append(check(settings))
                    break
                except UserError as error:
                    first_error = first_error or str(error)
            else:
                value = ":".join(text for _, text in as_overrides(setting))
                raise UserError(f"--search: {dimension.name}={value}: {first_error}")
    return results
