"""Rules by parameter path: learning-rate factors, weight decay, freezing, other optimizers.

A parameter's path is "encoder/trunk/blocks/3/attention/query/kernel": stacked layers are one array, and rules
match each layer by its number from below. If layers are of kinds with different parameters the path is
"blocks/3/window/attention/query/kernel", for layer 3 of kind "window". For each setting the first rule that
matches and sets it applies.
"""

import dataclasses
import difflib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.errors import UserError
from transformer.training.optim.optax_optimizers import CAUTIOUS, build, find_optimizer
from transformer.training.optim.roles import Role, Roles, joined, unknown
from transformer.training.optim.schedules import Schedule
from transformer.training.state import Params

BELOW = r"^(?!.*blocks/)(.*/)?(cls|(source_|value_)?embedding(_norm)?|(source_)?position|token_types)(/|$)"
"""Parameters below the first block; positions in the attention of a block are of its layer."""

TOKEN_TABLE = r"(^|/)(source_|value_)?embedding/table$"
MAX_LISTED_PATHS = 6
"""The most paths that an error lists."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Settings of the parameters whose path contains the regular expression `match`; None: not set."""

    match: str  # regular expression, found anywhere in a parameter's path
    learning_rate: float | None = None  # factor of the learning rate
    weight_decay: float | None = None  # decoupled weight decay, in place of optimizer.weight_decay
    frozen: bool | None = None  # whether the parameters are not trained
    optimizer: str | None = None  # another optimizer, by its name in optax
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)  # of that optimizer

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except re.error as error:
            raise UserError(f"match: {self.match!r} is not a regular expression: {error}") from None
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise UserError(f"learning_rate: {self.learning_rate}; expected a factor above 0, or frozen")
        if self.weight_decay is not None and not self.weight_decay >= 0:
            raise UserError(f"weight_decay: {self.weight_decay} is negative; expected 0 or more")
        if self.arguments and self.optimizer is None:
            raise UserError(f"arguments: {dict(self.arguments)} of no optimizer; name it, or leave them out")
        if all(getattr(self, key) is None for key in SETTINGS):
            raise UserError(f"match: {self.match!r} has no setting; expected one of {', '.join(SETTINGS)}")


SETTINGS = ("learning_rate", "weight_decay", "frozen", "optimizer")


@dataclasses.dataclass(frozen=True)
class ParameterSettings:
    """The settings of one parameter; if its stacked layers differ, `learning_rate` and `frozen` are (n, 1,
    ...). `rule` is the rule that names another optimizer, if any."""

    learning_rate: float | np.ndarray
    weight_decay: float
    frozen: bool | np.ndarray
    rule: Rule | None

    def cut(self, leaf: jax.Array) -> jax.Array:
        """The layers of a stacked parameter that are not frozen."""
        return leaf if isinstance(self.frozen, bool) else leaf[np.flatnonzero(~self.frozen)]

    def restore(self, update: jax.Array, param: jax.Array) -> jax.Array:
        """The inverse of `cut`, with 0 for the frozen layers."""
        if isinstance(self.frozen, bool):
            return update
        return jnp.zeros(param.shape, update.dtype).at[np.flatnonzero(~self.frozen)].set(update)


def by_rules(
    config: Any, schedule: Schedule, layers: Sequence[str], roles: Roles
) -> optax.GradientTransformation:
    """The optimizer of an `OptimizerConfig` with rules, or short forms of them; `layers` and `roles` as for
    `parameter_settings`.

    Frozen parameters, and frozen layers of stacked parameters, are cut out before it, so they have no
    optimizer state.
    """

    def init(params: Params) -> optax.OptState:
        settings = parameter_settings(params, config, layers, roles)
        optimizer = _combined(settings, config, schedule, roles)
        return optimizer.init(jax.tree.map(ParameterSettings.cut, settings, params))

    def update(updates: Params, state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        settings = parameter_settings(params, config, layers, roles)
        optimizer = _combined(settings, config, schedule, roles)
        trained, of = (jax.tree.map(ParameterSettings.cut, settings, tree) for tree in (updates, params))
        changes, state = optimizer.update(trained, state, of)
        scaled = jax.tree.map(lambda t, u, p: t.restore(u, p) * t.learning_rate, settings, changes, params)
        return scaled, state

    return optax.GradientTransformation(init, update)


def _combined(
    settings: Params, config: Any, schedule: Schedule, roles: Roles
) -> optax.GradientTransformation:
    """One optimizer for each group of parameters with the same optimizer and weight decay.

    Parameters without weight decay are in the main optimizer's group, whose mask excludes them. Muon does not
    decay the parameters that it leaves to Adam; those with weight decay by a rule form a group of their own.
    """
    decayed = jax.tree.map(lambda setting: setting.weight_decay > 0, settings)
    main = build(config.name, config.arguments, schedule, config.weight_decay, decayed, roles)
    if not config.has_rules:
        return main
    groups: dict[tuple[Rule | None, float], str] = {}

    def label(path: tuple, setting: ParameterSettings) -> str:
        if setting.frozen is True:
            return "frozen"
        can_decay = not config.is_muon or roles(path).is_hidden
        as_usual = setting.weight_decay == 0 or (setting.weight_decay == config.weight_decay and can_decay)
        if setting.rule is None and as_usual:
            return "trained"
        return groups.setdefault((setting.rule, setting.weight_decay), f"group_{len(groups)}")

    labels = jax.tree_util.tree_map_with_path(label, settings)
    optimizers = {"trained": main, "frozen": optax.set_to_zero()}
    for (rule, decay), group in groups.items():
        name, arguments = (rule.optimizer or "", rule.arguments) if rule else (config.name, config.arguments)
        takes = inspect.signature(find_optimizer(name)).parameters
        # All of the group decays, also what Muon leaves to Adam.
        keys = ["weight_decay"] if name.startswith(CAUTIOUS) else ["weight_decay", "adam_weight_decay"]
        own = {key: decay for key in keys if key in takes}
        optimizers[group] = build(name, {**arguments, **own}, schedule, decay, decayed, roles)
    return optax.partition(optimizers, labels)


def parameter_settings(
    params: Params, config: Any, layers: Sequence[str] = (), roles: Roles = unknown
) -> Params:
    """The tree of `params` with `ParameterSettings` in place of each array; `config` is an `OptimizerConfig`.

    `layers` are the kinds of layers in the order that repeats over the depth (`model.layers`): if they have
    different parameters, the arrays of a kind stack the layers of that kind. Where no rule sets it, `roles`
    say whether a parameter has weight decay, as a matrix, and the rate of Adam.

    Raises:
      UserError: layers of one array would have different optimizers or weight decays.
    """
    short_forms = [*_short_forms(params, config, layers)]
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    settings = []
    for (path, leaf), names in zip(leaves, numbered(params, layers), strict=True):
        by_layer = [_settle(config, short_forms, name, functools.partial(roles, path)) for name in names]
        alike = all(setting == by_layer[0] for setting in by_layer)
        settings.append(by_layer[0] if alike else _stacked(by_layer, path, leaf.ndim))
    return jax.tree.unflatten(structure, settings)


def _stacked(layers: list[ParameterSettings], path: tuple, ndim: int) -> ParameterSettings:
    """The settings of a stacked array from those of its layers."""
    trained = [layer for layer in layers if not layer.frozen] or layers
    first = trained[0]
    if any((layer.weight_decay, layer.rule) != (first.weight_decay, first.rule) for layer in trained):
        keys = "optimizers or weight decays"
        raise UserError(f"config.optimizer.rules: layers of {joined(path)}, one array, have other {keys}")
    frozen, rates = (
        np.reshape([getattr(layer, key) for layer in layers], (-1, *[1] * (ndim - 1)))
        for key in ("frozen", "learning_rate")
    )
    partly = frozen if frozen.any() and not frozen.all() else bool(frozen.all())
    return ParameterSettings(rates.astype(np.float32), first.weight_decay, partly, first.rule)


def stop_gradients(params: Params, config: Any, layers: Sequence[str] = (), roles: Roles = unknown) -> Params:
    """`params` with a stop-gradient on frozen ones, which saves their gradients and keeps them out of the
    gradient norm."""

    def held(settings: ParameterSettings, param: jax.Array) -> jax.Array:
        if isinstance(settings.frozen, bool):
            return jax.lax.stop_gradient(param) if settings.frozen else param
        # layer by layer, since the compiler drops what is computed for a whole part of a concatenation alone
        parts = zip(jax.lax.split(param, [1] * len(param)), settings.frozen.flat, strict=True)
        return jnp.concatenate([jax.lax.stop_gradient(part) if frozen else part for part, frozen in parts])

    return jax.tree.map(held, parameter_settings(params, config, layers, roles), params)


def check_rules(params: Params, config: Any, layers: Sequence[str] = (), roles: Roles = unknown) -> None:
    """Raises `UserError` if a rule, or a key that stands for rules, matches no parameter, or if all are
    frozen."""
    paths = [name for names in numbered(params, layers) for name in names]
    names = sorted({name for path in paths for name in path.split("/") if not name.isdecimal()})
    for i, rule in enumerate(config.rules):
        if not any(re.search(rule.match, path) for path in paths):
            raise UserError(
                f"config.optimizer.rules[{i}].match: {rule.match!r} matches no parameter; there are "
                f"{', '.join(paths[:MAX_LISTED_PATHS])} and {max(0, len(paths) - MAX_LISTED_PATHS)} more"
            )
    for only in _prefixes(config):
        if not any(name.startswith(only) for name in names):
            near = difflib.get_close_matches(only, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"names there: {', '.join(names)}"
            raise UserError(f"config.optimizer.train_only: no parameter's name starts with {only!r}; {hint}")
    depth = max(_stacks(params, layers).values(), default=0)
    if config.frozen_layers > depth:
        raise UserError(
            f"config.optimizer.frozen_layers: {config.frozen_layers}; the model has {depth} blocks"
        )
    settings = jax.tree.leaves(parameter_settings(params, config, layers, roles))
    if all(setting.frozen is True for setting in settings):
        keys = [f"rules[{i}].match {rule.match!r}" for i, rule in enumerate(config.rules) if rule.frozen]
        short = {"frozen_layers": config.frozen_layers, "train_only": config.train_only}
        keys += [f"{key} {value!r}" for key, value in short.items() if value]
        raise UserError(f"config.optimizer.{', '.join(keys)}: all parameters are frozen; leave some out")


def _settle(config: Any, short_forms: list[Rule], name: str, role: Callable[[], Role]) -> ParameterSettings:
    def first(key: str, rules: Iterable[Rule], default: Any) -> Any:
        return next((value for rule in rules if (value := getattr(rule, key)) is not None), default)

    own, short = (
        [rule for rule in rules if re.search(rule.match, name)] for rules in (config.rules, short_forms)
    )
    matching = own + short
    if (rate := first("learning_rate", own, None)) is None:
        rate = first("learning_rate", short, 1.0)
        if config.adam_learning_rate and not role().is_hidden:
            rate *= config.adam_learning_rate / config.learning_rate
    if (decay := first("weight_decay", matching, None)) is None:
        decay = config.weight_decay if config.weight_decay and config.decays_by(role()) else 0.0
    by_rule = next((rule for rule in matching if rule.optimizer is not None), None)
    return ParameterSettings(rate, decay, first("frozen", matching, False), by_rule)


def _short_forms(params: Params, config: Any, layers: Sequence[str]) -> Iterator[Rule]:
    """The rules that other keys of the optimizer stand for.

    `frozen_layers` freezes the lowest blocks and everything below them; `train_only` freezes all parameters
    whose path has no name with one of its prefixes. `layer_decay` d multiplies the learning rate of block i
    of n by d^(n - 1 - i), below the blocks by d^n and above them by 1 (Clark et al. 2020, ELECTRA, appendix
    A; Howard and Ruder 2018), beside the factor adam_learning_rate / learning_rate of `_settle`.
    """
    for i in range(config.frozen_layers):
        yield Rule(f"blocks/{i}/", frozen=True)
    if config.frozen_layers:
        yield Rule(BELOW, frozen=True)
    if only := _prefixes(config):
        yield Rule(f"(^|/)({'|'.join(map(re.escape, only))})", frozen=False)
        yield Rule("", frozen=True)
    if config.layer_decay < 1:
        yield from _rates(_stacks(params, layers), config.layer_decay)
    if config.embedding_weight_decay:
        yield Rule(TOKEN_TABLE, weight_decay=config.embedding_weight_decay)


def _rates(stacks: dict[str, int], decay: float) -> Iterator[Rule]:
    for stack, n in stacks.items():
        for i in range(n):
            yield Rule(rf"^{re.escape(stack)}/{i}/", learning_rate=decay ** (n - 1 - i))
    yield Rule(BELOW, learning_rate=decay ** max(stacks.values(), default=0))


def _prefixes(config: Any) -> tuple[str, ...]:
    return tuple(name.strip() for name in config.train_only.split(",") if name.strip())


def _depths(params: Params, layers: Sequence[str]) -> dict[tuple[str, str], list[int]]:
    """(path of a stack of blocks, name in it) -> the layers, counted from below, of the arrays under that
    name; under a kind of layers, the layers of that kind (see `Stack`). Arrays that layers share count as of
    the first of these."""
    sizes: dict[str, dict[str, int]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        stack, name, _ = _split(path)
        if stack:
            counts = sizes.setdefault(stack, {})
            counts[name] = max(counts.get(name, 0), leaf.shape[0])
    depths = {}
    for stack, counts in sizes.items():
        of_kinds = set(counts) == set(layers)
        for name, count in counts.items():
            kinds = itertools.cycle(layers if of_kinds else [name])
            of_name = (i for i, kind in enumerate(kinds) if kind == name)
            depths[stack, name] = [*itertools.islice(of_name, count)]
    return depths


def _stacks(params: Params, layers: Sequence[str]) -> dict[str, int]:
    """Path of a stack of blocks -> number of blocks."""
    stacks: dict[str, int] = {}
    for (stack, _), depths in _depths(params, layers).items():
        stacks[stack] = max(stacks.get(stack, 0), depths[-1] + 1)
    return stacks


def numbered(params: Params, layers: Sequence[str]) -> list[list[str]]:
    """The paths of each array that rules match: one path, or one for each stacked block."""
    depths, paths = _depths(params, layers), []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        stack, name, rest = _split(path)
        layers_of = depths[stack, name][: leaf.shape[0]] if stack else []
        paths.append([f"{stack}/{i}/{rest}" for i in layers_of] or [rest])
    return paths


def _split(path: tuple) -> tuple[str, str, str]:
    """ "encoder/blocks/norm/scale" -> ("encoder/blocks", "norm", "norm/scale"); the first two are "" outside
    a stack."""
    before, blocks, after = joined(path).partition("blocks/")
    return (before + "blocks", after.split("/")[0], after) if blocks else ("", "", before)
