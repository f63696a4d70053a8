"""A family of models of another library: its config keys, its tensors, and which of ours can be one."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer.config import LARGEST, idle_keys
from transformer.errors import UserError, brief
from transformer.interop.harmless import COMMON, is_harmless
from transformer.interop.tensor_rules import Rule

DECODERS = ("chat", "dpo", "text_to_text")
"""Objectives that train a language model, besides language modelling."""

REQUIRED = object()
"""The default of a key that must be there."""

Values = Mapping[str, Any]
"""The keys of their config.json, or of our config group `model`."""


@dataclass(frozen=True)
class Key:
    """Our key `ours` of `model` is their key `theirs` of config.json.

    Where theirs is missing or null it is `default`, or what this function of their config gives, as
    transformers documents it. `values` translates theirs to ours; without it they are equal. `get` is the
    value of ours that is written, a function of the model's config; by default the key's.
    """

    ours: str
    theirs: str
    default: Any = REQUIRED
    values: Mapping[Any, Any] | None = None
    get: Callable[[Any], Any] | None = None

    def read(self, config: Values) -> Any:
        """Our value; raises `UserError` if theirs is missing or means nothing here."""
        value = config.get(self.theirs)
        if value is None:
            if self.default is REQUIRED:
                raise UserError(f"{self.theirs}: missing key")
            try:
                value = self.default(config) if callable(self.default) else self.default
            except (TypeError, ValueError, ArithmeticError):
                raise UserError(
                    f"{self.theirs}: missing key, which does not follow from the others"
                ) from None
        if self.values is None:
            return value
        if isinstance(value, (dict, list)) or value not in self.values:
            raise UserError(f"{self.theirs}: {value!r}; expected one of {_listed(self.values)}")
        return self.values[value]

    def write(self, model: Any) -> Any:
        """Their value; raises `UserError` if the family cannot express ours."""
        value = getattr(model, self.ours) if self.get is None else self.get(model)
        if self.values is None:
            return value
        for theirs, ours in self.values.items():
            if ours == value:
                return theirs
        expected = _listed(dict.fromkeys(self.values.values()))
        raise UserError(f"model.{self.ours}: {value!r}; expected one of {expected}")


def value_or(config: Values, name: str, default: Any) -> Any:
    """Their value `name`, or the default where it is missing or null."""
    return default if config.get(name) is None else config[name]


def whole_number(config: Values, name: str, default: int, least: int = 1, most: int = LARGEST) -> int:
    """Their whole number `name`; raises `UserError` if it is none, or out of bounds."""
    value = value_or(config, name, default)
    if type(value) is not int or not least <= value <= most:
        raise UserError(
            f"{name}: {_short(value)}; expected a whole number of at least {least}, at most {most:,}"
        )
    return value


def positive_number(config: Values, name: str, default: Any) -> Any:
    """Their number `name`; raises `UserError` if it is none above 0."""
    value = value_or(config, name, default)
    if type(value) not in (int, float) or not value > 0:
        raise UserError(f"{name}: {_short(value)}; expected a number above 0")
    return value


def no_keys(config: Any) -> dict[str, Any]:
    """No further keys."""
    return {}


@dataclass(frozen=True)
class Family:
    """Reads and writes models with one `model_type` in config.json.

    - `experiment`: the objective that they are trained with here, and `also` others of such models;
    - `architecture`: the class of transformers that an exported model names;
    - `keys`: what corresponds one to one, or several of ours that are equal to one of theirs;
    - `fixed`: keys of our `model` that such models always have, and their values;
    - `assumed`: their keys that must have one value, which is also that of a missing one;
    - `silent`: their keys without effect here, besides `COMMON`;
    - `read`, `write`: further keys, of ours from theirs and of theirs from ours, with the names of theirs
      and of ours in `further` and `written`;
    - `rules`: the tensors, for a config of ours;
    - `data`, `write_data`: keys of our group `data` from their config, and of theirs from our group;
    - `heads`: of models without a head, which start runs of other objectives: the parts of the parameters
      here that such models lack, or may lack;
    - `alone`: the objective of a run that a model without a head is by itself, which is exported as it;
    - `labelled`: whether it tells the labels in id2label apart;
    - `pixels`, `write_pixels`: of a family of images: keys of our `model` from preprocessor_config.json, and
      this file from our `model` and `data`;
    - `prefix`: what the names of tensors may start with or not;
    - `renamed`: regular expressions in names of tensors, and what replaces them;
    - `ignored`: regular expressions for names of tensors that are not parameters, for a config of ours;
    - `computed`: names of tensors that may be there although they are computed here, for a config of ours,
      and the function (shape) -> values;
    - `copies`: names of tensors that may be there for a parameter of ours once more, for a config of ours;
    - `paired`: whether it is an encoder-decoder.
    """

    model_type: str
    experiment: str
    architecture: str
    keys: tuple[Key, ...]
    rules: Callable[[Any], Iterable[Rule]]
    fixed: Values = field(default_factory=dict)
    assumed: Values = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    read: Callable[[Values], dict[str, Any]] = no_keys
    write: Callable[[Any], dict[str, Any]] = no_keys
    further: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    data: Callable[[Values], dict[str, Any]] = no_keys
    write_data: Callable[[Any], dict[str, Any]] = no_keys
    heads: tuple[str, ...] = ()
    alone: str = ""
    labelled: bool = False
    pixels: Callable[[Values], dict[str, Any]] | None = None
    write_pixels: Callable[[Any, Any], dict[str, Any]] | None = None
    prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: Callable[[Any], Sequence[str]] = lambda model: ()
    computed: Callable[[Any], Mapping[str, Callable[[tuple[int, ...]], Any]]] = no_keys
    copies: Callable[[Any], Mapping[str, str]] = no_keys
    paired: bool = False
    also: tuple[str, ...] = ()

    def model(self, config: Values) -> dict[str, Any]:
        """The keys of our `model` for their config.

        Raises:
          UserError: a key that is missing, unknown, or has a value that cannot be expressed here.
        """
        if unknown := [name for name in self.foreign(config) if not is_harmless(name, config[name])]:
            shown = ", ".join(f"{shown_key(name)}: {_short(config[name])}" for name in unknown)
            problem = f"{shown} {'have' if unknown[1:] else 'has'} no meaning here for {self.model_type!r}"
            flag = f"--mode=import --ignore={brief(','.join(map(shown_key, unknown)), 200)}"
            raise UserError(f"{problem}; if it cannot change the function, {flag} leaves it out")
        for name, expected in self.assumed.items():
            if config.get(name) is not None and config[name] != expected:
                raise UserError(f"{name}: {_short(config[name])}; only {expected!r} is known here")
        return dict(self.fixed) | {key.ours: key.read(config) for key in self.keys} | self.read(config)

    @property
    def known(self) -> frozenset[str]:
        """Their keys that are read here, or are known to have no effect."""
        return COMMON | self.silent | {*self.further, *(key.theirs for key in self.keys)}

    def foreign(self, config: Values) -> list[str]:
        """The keys of their config that the family does not have, and that are not null."""
        known = self.known | {*self.assumed}
        return [name for name, value in config.items() if name not in known and value is not None]

    def config(self, model: Any) -> dict[str, Any]:
        """Their config for our `model`, without the numbers of tokens.

        Raises:
          UserError: a key of ours that such models do not have, or have with another value.
        """
        if refused := [*self._refused(model)]:
            raise UserError("; ".join(refused))
        constants = {"model_type": self.model_type, "architectures": [self.architecture], **self.assumed}
        return constants | {key.theirs: key.write(model) for key in self._keys(model)} | self.write(model)

    def _keys(self, model: Any) -> list[Key]:
        """The keys that are those of our `model`: without a head, an objective need not have all."""
        fields = type(model).__dataclass_fields__
        return [key for key in self.keys if not self.heads or key.ours in fields]

    def _refused(self, model: Any) -> Iterator[str]:
        """Each key of ours that such models do not have, with what they have."""
        ours = {key.ours for key in self.keys} | {*self.written} | {*model.own, "vocab_multiple"}
        idle = {name for name, _, _, why in idle_keys(model) if why}
        for item in dataclasses.fields(model):
            value, name = getattr(model, item.name), item.name
            if name in ours or name in idle:
                continue
            expected = self.fixed[name] if name in self.fixed else _default(item)
            if value != expected:
                yield f"model.{name}: {_short(value)}, {self.model_type!r} has {expected!r}"
        written: dict[str, tuple[Key, Any]] = {}
        for key in self._keys(model):
            try:
                value = key.write(model)
            except UserError as error:
                yield str(error)
                continue
            earlier, same = written.setdefault(key.theirs, (key, value))
            if value != same:
                values = (f"model.{k.ours}: {getattr(model, k.ours)!r}" for k in (key, earlier))
                yield f"{' with '.join(values)}; such models have one {key.theirs}"


def shown_key(name: str) -> str:
    """A key of a file, as a message names it."""
    return brief(name if name.isprintable() else repr(name), 80)


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(repr, values))


def _short(value: Any) -> str:
    return brief(repr(value), 80)
