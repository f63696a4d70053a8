"""Optimizers by optax's own names, with the schedules and the weight-decay mask of Transformers."""

import dataclasses
import difflib
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from transformer.errors import UserError
from transformer.training.experiment import Params
from transformer.training.schedules import SCHEDULES, Schedule, extended
from transformer.training.tuning import Tuning, is_tuned, tuned

MASKS = ("mask", "weight_decay_mask")
DIMENSIONS = "muon_weight_dimension_numbers"
ADAM_RATE = "adam_learning_rate"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Tuning):
    """How parameters are updated.

    Weight decay is decoupled, p <- p - rate(u) weight_decay p, of kernels only (`decay_mask`). An
    optimizer that takes both `weight_decay` and a mask applies it itself (Muon to its matrices only, not
    to what it leaves to Adam); to one that takes neither (adam, sgd, adafactor ...) it is added after the
    optimizer's own update; one whose decay cannot be masked takes it in `arguments`, and is refused here.

    Raises:
      UserError: an unknown optimizer, schedule or argument, or a value out of range.
    """

    name: str = "adamw"
    learning_rate: float = 1e-3
    adam_learning_rate: float = 0.0
    schedule: str = "cosine"
    warmup_steps: int = 100
    decay_steps: int = 0
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    ema_decay: float = 0.0
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        factory = find_optimizer(self.name)
        if self.schedule not in SCHEDULES:
            raise UserError(f"schedule: {self.schedule!r} is none of {', '.join(SCHEDULES)}")
        for key in (
            "learning_rate",
            "adam_learning_rate",
            "warmup_steps",
            "decay_steps",
            "weight_decay",
            "clip_norm",
        ):
            if not getattr(self, key) >= 0:
                raise UserError(f"{key}: {getattr(self, key)} is negative; expected 0 or more")
        if not 0 <= self.final_fraction <= 1:
            raise UserError(f"final_fraction: {self.final_fraction} is not between 0 and 1")
        if not 0 <= self.ema_decay < 1:
            raise UserError(f"ema_decay: {self.ema_decay} is not in [0, 1)")
        if self.schedule == "wsd" and self.decay_steps == 0:
            raise UserError("decay_steps: 0 steps of decay; the wsd schedule needs at least 1")
        parameters = inspect.signature(factory).parameters
        mask = _mask_name(parameters)
        if self.weight_decay > 0 and "weight_decay" in parameters and mask is None:
            raise UserError(
                f"weight_decay: {self.weight_decay} cannot leave out biases and norms: {self.name} takes "
                f"no mask. Give it in optimizer.arguments for all parameters, and 0 here"
            )
        if self.adam_learning_rate and ADAM_RATE not in parameters:
            raise UserError(
                f"adam_learning_rate: {self.adam_learning_rate}, but {self.name} leaves nothing to Adam; "
                "expected 0 here"
            )
        if self.adam_learning_rate and ADAM_RATE in self.arguments:
            raise UserError(f"arguments.{ADAM_RATE}: there is adam_learning_rate already; give one of them")
        ours = {"learning_rate", mask, DIMENSIONS} | ({"weight_decay"} if mask else set())
        valid = [key for key in parameters if key not in ours]
        for key in self.arguments:
            if key not in valid:
                raise UserError(f"arguments.{key}: {self.name} takes only {', '.join(valid)} here")
        if self.averages_itself:
            self._check_schedule_free(parameters)
        _probe(self)

    @property
    def averages_itself(self) -> bool:
        """Whether the parameters to evaluate with come from the optimizer (see `own_average`)."""
        return self.name.rpartition(".")[2].startswith("schedule_free")

    def idle(self) -> dict[str, str]:
        """See `transformer.freeze.refuse_idle`."""
        decays = self.schedule in ("cosine", "wsd")
        return {} if decays else {"decay_steps": f"with schedule {self.schedule!r}"}

    def _check_schedule_free(self, parameters: Mapping[str, Any]) -> None:
        if self.ema_decay:
            raise UserError(f"ema_decay: {self.ema_decay} with {self.name}, which has its own average; use 0")
        if is_tuned(self):
            raise UserError(
                f"name: {self.name} averages all parameters at one rate; expected layer_decay 1, "
                "frozen_layers 0 and train_only ''"
            )
        b1 = self.arguments.get("b1", parameters["b1"].default)
        if isinstance(b1, (int, float)) and not 0 < b1 <= 1:
            raise UserError(f"arguments.b1: {b1}; {self.name} interpolates by it: expected it in (0, 1]")


def make_optimizer(
    config: OptimizerConfig, steps: int, lengths: Sequence[tuple[int, int]] = ()
) -> tuple[optax.GradientTransformation, Schedule]:
    """The optimizer of a run of `steps` updates, and its learning rate by the count of updates made.

    `lengths` says where that number was changed: up to update `at` it was `steps`, for each (at, steps) of
    it, and the rate goes on from there as `schedules.extended` says. Clipping by `clip_norm` and averages of
    the parameters are not in the optimizer: the train step has the gradient norm anyway and does both.

    Raises:
      UserError: a schedule longer than the run.
    """
    planned = config.warmup_steps + config.decay_steps
    if config.schedule in ("cosine", "wsd") and planned > steps:
        raise UserError(
            f"optimizer.warmup_steps: {config.warmup_steps} and decay_steps {config.decay_steps} "
            f"do not fit the {config.schedule} schedule into train.steps {steps}"
        )

    def shape_of(steps: int) -> Schedule:
        return functools.partial(
            SCHEDULES[config.schedule],
            warmup_steps=config.warmup_steps,
            decay_steps=config.decay_steps,
            final_fraction=config.final_fraction,
            steps=steps,
        )

    shapes = [shape_of(length) for length in (*(before for _, before in lengths), steps)]
    shape = shapes[0]
    for (at, _), after in zip(lengths, shapes[1:], strict=True):
        shape = extended(shape, after, at, config.warmup_steps)

    def schedule(count):
        return config.learning_rate * shape(count)

    return tuned(_build(config, shape), config), schedule


def _build(config: OptimizerConfig, shape: Schedule) -> optax.GradientTransformation:
    """The optimizer whose rates are their peaks times `shape`."""

    def schedule(count: Any) -> Any:
        return config.learning_rate * shape(count)

    factory = find_optimizer(config.name)
    parameters = inspect.signature(factory).parameters
    mask = _mask_name(parameters)
    arguments = dict(config.arguments)
    if mask is not None:
        arguments |= {"weight_decay": config.weight_decay, mask: decay_mask}
    elif "weight_decay" in parameters:
        arguments.setdefault("weight_decay", 0.0)
    if config.adam_learning_rate:
        arguments[ADAM_RATE] = lambda count: config.adam_learning_rate * shape(count)
    if DIMENSIONS in parameters:
        arguments[DIMENSIONS] = matrix_dimensions
    optimizer = factory(learning_rate=schedule, **arguments)
    if config.weight_decay > 0 and mask is None:
        decay = optax.add_decayed_weights(lambda count: -config.weight_decay * schedule(count), decay_mask)
        optimizer = optax.chain(optimizer, decay)
    return optimizer


def own_average(opt_state: optax.OptState, params: Params) -> Params:
    """The parameters to evaluate with under a schedule-free optimizer, x = (y - (1 - b1) z) / b1, where y are
    those that gradients are taken at and z the fast ones.

    Source: Defazio et al. 2024, "The road less scheduled", equations 1 to 3.
    """

    def is_state(node: Any) -> bool:
        return hasattr(node, "weight_sum")

    (found,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return optax.contrib.schedule_free_eval_params(found, params)


def find_optimizer(name: str) -> Callable[..., optax.GradientTransformation]:
    """The function optax has under `name` ("adamw", "contrib.muon"); a `UserError` where it has none."""
    found: Any = optax
    for part in name.split("."):
        found = getattr(found, part, None)
    if not _is_optimizer(found):
        families = {"": optax, "contrib.": optax.contrib}
        names = [
            prefix + key
            for prefix, family in families.items()
            for key, value in sorted(vars(family).items())
            if not key.startswith("_") and _is_optimizer(value)
        ]
        near = difflib.get_close_matches(name, names) or [each for each in names if name in each]
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names)}"
        raise UserError(f"name: optax has no optimizer {name!r}; {hint}")
    return found


def decay_mask(params: Params) -> Params:
    """True where weight decay applies: at the matrices, which are named `kernel`; not at biases, norm
    scales or embedding tables. By name, for stacking over layers gives everything one more axis."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _keys(path)[-1] == "kernel", params)


def matrix_dimensions(params: Params) -> Params:
    """Which axes of a parameter are its matrix's rows and columns, for Muon; None where Adam is to update.

    The kernels of `blocks` (`encoder_blocks`, `decoder_blocks`) are (n, rows, columns), with the layers n
    left as a batch of matrices: rows (d), columns (h, k) for query, key and value; rows (h, k), columns (d)
    for the attention's output.
    Embeddings, the unembedding and vectors are Adam's, as in https://kellerjordan.github.io/posts/muon.
    """

    def dimensions(path: tuple, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        keys = _keys(path)
        if keys[-1] != "kernel" or not any(key.endswith("blocks") for key in keys):
            return None
        last = leaf.ndim - 1
        if last == 3 and keys[-2] == "output":
            return optax.contrib.MuonDimensionNumbers((1, 2), (3,))
        return optax.contrib.MuonDimensionNumbers((1,), tuple(range(2, last + 1)))

    return jax.tree_util.tree_map_with_path(dimensions, params)


def _probe(config: OptimizerConfig) -> None:
    """Traces one update of a toy tree, so that what optax makes of the arguments is known at once."""
    shapes = {"blocks": {"up": {"kernel": (1, 2, 2)}, "norm": {"scale": (1, 2)}}, "table": (2, 2)}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )

    def update(params: Params) -> Params:
        optimizer = _build(config, lambda count: jnp.float32(1))
        return optimizer.update(params, optimizer.init(params), params)[0]

    try:
        jax.eval_shape(update, params)
    except Exception as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        given = dict(config.arguments)
        raise UserError(f"arguments: {config.name} cannot be used with {given}: {reason}") from error


def _keys(path: tuple) -> list[str]:
    return [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]


def _mask_name(parameters: Mapping[str, Any]) -> str | None:
    if "weight_decay" not in parameters:
        return None
    return next((name for name in MASKS if name in parameters), None)


def _is_optimizer(found: Any) -> bool:
    if not isinstance(found, (types.FunctionType, functools.partial)):
        return False
    if getattr(found, "__name__", "").startswith(("_", "scale_by_")):
        return False
    parameters = inspect.signature(found).parameters
    return "learning_rate" in parameters and "base_optimizer" not in parameters
