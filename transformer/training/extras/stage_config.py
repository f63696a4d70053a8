"""The stages of `train.until`: the configs with which a run trains until certain steps."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from transformer.errors import UserError, suggest


class Scheduled(NamedTuple):
    """The keys that may differ until a step."""

    value: Callable[[Any], int]  # that of a config
    changed: Callable[[Any, int], Any]  # a config with another; raises `UserError`


def with_batch_size(config: Any, rows: int) -> Any:
    """Batches of that many rows."""
    return replace(config, train=replace(config.train, batch_size=rows))


def with_sequence_length(config: Any, length: int) -> Any:
    """Rows of `length` tokens.

    Source: Li et al. 2022, "The stability-efficiency dilemma", section 4 (sequence length warm-up); Press et
    al. 2021, "Shortformer", section 4 (staged training).
    """
    if (whole := config.data.sequence_length) % length:
        raise UserError(f"{length} tokens do not divide a row of data.sequence_length {whole}")
    return replace(config, data=replace(config.data, sequence_length=length))


def with_window(config: Any, size: int) -> Any:
    """Attention to `size` tokens at most (see `transformer.models.transforms.windowed`)."""
    if not config.model.kinds:
        raise UserError(f"{size}; models of {config.experiment} have no windows of attention")
    return replace(config, model=config.model.windowed(size))


def widest_window(config: Any) -> int:
    """The most tokens to one side that a layer attends to."""
    whole = vars(config.data).get("sequence_length", config.model.max_length)
    kinds = config.model.kinds.values()
    return max(kind.pattern_size if kind.pattern == "window" else whole for kind in kinds)


SCHEDULED = {
    "batch_size": Scheduled(lambda config: config.train.batch_size, with_batch_size),
    "sequence_length": Scheduled(lambda config: config.data.sequence_length, with_sequence_length),
    "window": Scheduled(widest_window, with_window),
}
"""The names in `train.until`."""


class StageConfig(NamedTuple):
    """The config of the steps from number `first` on, and its values by their names in `train.until`; the
    last stage has none, and the keys of the config itself."""

    first: int
    values: dict[str, int]
    config: Any


def stage_configs(config: Any) -> Iterator[StageConfig]:
    """The stages of a config in order, without their `train.until`.

    Raises:
      UserError: an impossible value.
    """
    until = {
        name: sorted((int(step), value) for step, value in values.items())
        for name, values in config.train.until.items()
    }
    for first in sorted({0}.union(step for ends in until.values() for step, _ in ends)):
        values, stage = {}, replace(config, train=replace(config.train, until={}))
        for name, ends in until.items():
            if (value := next((value for end, value in ends if first < end), None)) is not None:
                values[name] = value
                stage = _changed(stage, name, value)
        yield StageConfig(first, values, stage)


def _changed(config: Any, name: str, value: int) -> Any:
    try:
        return SCHEDULED[name].changed(config, value)
    except UserError as error:
        raise UserError(f"train.until.{name}: {error}") from None


def rows_before(config: Any, step: int) -> int:
    """The number of rows that a run reads in its first `step` steps."""
    stages = [*stage_configs(config)]
    ends = [*(stage.first for stage in stages[1:]), step]
    return sum(
        max(0, min(end, step) - stage.first) * stage.config.train.batch_size
        for stage, end in zip(stages, ends, strict=True)
    )


def check_stages(config: Any) -> None:
    """Checks `train.until` of a config.

    Raises:
      UserError: a name that such a run cannot schedule; no mapping of steps to whole numbers; or an
        impossible value.
    """
    for name, values in config.train.until.items():
        key = f"train.until.{name}"
        if name not in SCHEDULED:
            raise UserError(f"{key}: unknown; {suggest(name, SCHEDULED)}")
        if name not in config.scheduled:
            only = ", ".join(config.scheduled)
            raise UserError(f"{key}: not in a run of {config.experiment}, where only {only} may change")
        if not isinstance(values, Mapping):
            raise UserError(f"{key}: {values!r}; expected values by the steps until which they hold")
        for step, value in values.items():
            if not step.isdecimal() or step.startswith("0"):
                raise UserError(f"{key}: until {step!r}; expected the number of a step, at least 1")
            if type(value) is not int or value < 1:
                raise UserError(f"{key}: {value!r} until step {step}; expected a whole number, at least 1")
    for _ in stage_configs(config):  # raises for an impossible value
        pass
