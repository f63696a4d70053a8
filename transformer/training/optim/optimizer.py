"""Optimizers by their names in optax, with schedules and rules by parameter path."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import jax
import optax

from transformer.conditions import FieldOf
from transformer.config import (
    Bounded,
    Fraction,
    Nonnegative,
    NonnegativeFloat,
    OneOf,
    PositiveFraction,
    Rate,
)
from transformer.training.optim.optax_optimizers import (
    DIMENSIONS,
    build,
    find_optimizer,
    is_schedule_free,
)
from transformer.training.optim.optimizer_checks import CHECKS, check_length, check_numbers
from transformer.training.optim.roles import Role, Roles, unknown
from transformer.training.optim.rules import Rule, by_rules
from transformer.training.optim.schedules import SCHEDULES, Schedule, extended
from transformer.training.state import Params

of_schedule = functools.partial(FieldOf, "schedule", SCHEDULES, strict=False)

Lengths = Sequence[tuple[int, int | Schedule]]
"""Earlier values of `train.steps`, or earlier schedules (see `make_optimizer`)."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Bounded):
    """The optimizer, its schedule and rules.

    Weight decay is decoupled, p <- p - rate(u) weight_decay p, and applies to kernels only unless `rules` say
    otherwise. An optimizer that takes both `weight_decay` and a mask applies it itself (Muon to its matrices
    only, not to the parameters of Adam); for one that takes neither (adam, sgd, adafactor ...) it is added
    after the update. One with unmasked decay must get it in `arguments`; here it is an error.

    `rules` apply in order (see `transformer.training.optim.rules`), before those that `frozen_layers`,
    `train_only`, `layer_decay`, `adam_learning_rate`, `weight_decay` and `embedding_weight_decay` stand for.

    Raises:
      UserError: an unknown optimizer, schedule or argument, or a value out of range.
    """

    checks: ClassVar = CHECKS

    name: str = "contrib.muon"  # an optimizer of optax: adamw, lion, contrib.muon, cautious.adamw ...
    learning_rate: NonnegativeFloat = 0.02  # peak learning rate: 0.02 for Muon, about 1e-3 for AdamW
    adam_learning_rate: NonnegativeFloat = 0.0  # peak of parameters that Muon leaves to Adam; 0: the same
    schedule: Annotated[str, OneOf(SCHEDULES)] = "cosine"  # learning-rate schedule; wsd: warmup-stable-decay
    # further arguments of the schedule, by name; those of SCHEDULES have none
    schedule_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warmup_steps: Nonnegative = 100  # steps of linear warm-up
    # steps of the decay of wsd and cosine; 0: cosine decays to the last step
    decay_steps: Annotated[Nonnegative, of_schedule("decay_steps")] = 0
    # final learning rate of cosine and wsd, as a fraction of the peak
    final_fraction: Annotated[Fraction, of_schedule("final_fraction", refused=False)] = 0.0
    weight_decay: NonnegativeFloat = 0.1  # decoupled weight decay, of matrices only
    embedding_weight_decay: NonnegativeFloat = 0.0  # decoupled weight decay of token embeddings
    clip_norm: NonnegativeFloat = 1.0  # gradient clipping by global norm; 0: off
    ema_decay: Rate = 0.0  # decay of an exponential moving average of parameters, to evaluate with; 0: off
    layer_decay: PositiveFraction = 1.0  # factor of the learning rate for every block further from the output
    frozen_layers: Nonnegative = 0  # lowest blocks that are frozen, with the embeddings below them
    train_only: str = ""  # name prefixes of the trained parameters: head,pooler or lora,head; "": all
    rules: tuple[Rule, ...] = ()  # by parameter path: [{"match": "embedding/table$", "weight_decay": 0.1}]
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # arguments of the optimizer

    @property
    def averages_itself(self) -> bool:
        """Whether the optimizer averages the parameters itself (see `own_average`)."""
        return is_schedule_free(self.name)

    @property
    def shape(self) -> functools.partial:
        """The schedule, (count, steps) -> fraction of the peak, with the keys that it reads."""
        schedule = SCHEDULES[self.schedule]
        read = inspect.signature(schedule).parameters.keys() & self.__dataclass_fields__.keys()
        keys = {key: getattr(self, key) for key in read}
        return functools.partial(schedule, **keys, **self.schedule_arguments)

    @property
    def is_muon(self) -> bool:
        """Whether the optimizer is Muon, which multiplies hidden matrices with themselves and leaves the rest
        to Adam."""
        return DIMENSIONS in inspect.signature(find_optimizer(self.name)).parameters

    def decays_by(self, role: Role) -> bool:
        """Whether `weight_decay` applies to a parameter: a matrix, for Muon one that it takes."""
        return role.is_hidden if self.is_muon else role.is_matrix

    @property
    def has_rules(self) -> bool:
        """Whether there are rules besides those for weight decay and Adam's learning rate."""
        decays = self.embedding_weight_decay > 0
        return decays or bool(self.rules or self.frozen_layers or self.train_only) or self.layer_decay < 1


def make_optimizer(
    config: OptimizerConfig,
    steps: int,
    lengths: Lengths = (),
    layers: Sequence[str] = (),
    roles: Roles = unknown,
) -> tuple[optax.GradientTransformation, Schedule]:
    """The optimizer of a run of `steps` steps, and its learning rate as a `Schedule`.

    `update(gradients, state, params, step=n)` has the rate after n steps, however many updates the state has
    seen; without `step`, as in optax, it counts the updates. `lengths` are earlier values of `steps`, as (at,
    steps): until step `at` the run was to have `steps` steps, or had another schedule, and the learning rate
    continues from there by `schedules.extended`. `layers` are the model's kinds of layers (see
    `rules.parameter_settings`), and `roles` tell its matrices. The train step does gradient clipping and
    parameter averages.

    Raises:
      UserError: a schedule longer than the run, or one that gives no number from 0 on.
    """
    schedule = make_schedule(config, steps, lengths)
    kind = by_rules if config.has_rules or config.adam_learning_rate else for_all

    def update(updates: Params, state: Any, params: Params | None = None, *, step: Any = None) -> Any:
        rate = schedule if step is None else lambda count: schedule(step)
        return kind(config, rate, layers, roles).update(updates, state, params)

    init = kind(config, schedule, layers, roles).init
    return optax.GradientTransformationExtraArgs(init, update), schedule


def for_all(
    config: OptimizerConfig, rate: Schedule, layers: Sequence[str], roles: Roles
) -> optax.GradientTransformation:
    """One optimizer for all parameters."""
    decays = lambda path, _: config.weight_decay > 0 and config.decays_by(roles(path))  # noqa: E731
    decayed = functools.partial(jax.tree_util.tree_map_with_path, decays)
    return build(config.name, config.arguments, rate, config.weight_decay, decayed, roles)


def make_schedule(config: OptimizerConfig, steps: int, lengths: Lengths = ()) -> Schedule:
    """The learning rate of `make_optimizer`."""
    shape: Schedule = functools.partial(config.shape, steps=steps)
    if config.warmup_steps + config.decay_steps > steps:
        check_length(config, steps)
    if lengths:
        shape = _extended(config, shape, lengths)
    if config.schedule != OptimizerConfig.schedule:
        check_numbers(config, shape, steps)
    return lambda count: config.learning_rate * shape(count)


def _extended(config: OptimizerConfig, last: Schedule, lengths: Lengths) -> Schedule:
    """The schedule `last` of a run whose length or schedule was changed before."""
    planned = [
        before if callable(before) else functools.partial(config.shape, steps=before) for _, before in lengths
    ]
    shape, *later = [*planned, last]
    for (at, _), after in zip(lengths, later, strict=True):
        shape = extended(shape, after, at, config.warmup_steps)
    return shape
