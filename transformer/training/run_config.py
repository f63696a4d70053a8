"""The keys of a config that every run has."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from transformer.conditions import only
from transformer.config import (
    Bound,
    Bounded,
    Nonnegative,
    NonnegativeFloat,
    OnThisSystem,
    Place,
    Positive,
)  # fmt: skip
from transformer.errors import UserError
from transformer.training.logging.writers import names_of
from transformer.training.losses.logits_memory import LogitsConfig
from transformer.training.losses.token_losses import LossConfig
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.parallel import ParallelConfig

Seed = Annotated[int, Bound("a number from 0 to 2^32 - 1", 0, 2**32 - 1)]


@dataclass(frozen=True)
class TrainConfig(Bounded):
    """The length of training, and intervals of evaluation, checkpoints and logging."""

    steps: Positive = 1000  # number of updates
    batch_size: Positive = 16  # sequences per step, over all devices and microbatches
    # other values until a step, {"sequence_length": {"300": 64}}; or of batch_size, or window (of attention)
    until: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluate_every: Nonnegative = 0  # steps between evaluations; 0: only at the end
    evaluate_batches: Nonnegative = 0  # batches per evaluation; 0: all
    checkpoint_every: Nonnegative = 0  # steps between checkpoints; 0: only at the end, and when stopped
    checkpoint_minutes: NonnegativeFloat = 10.0  # save also after this many minutes without one; 0: off
    keep_last: Positive = 1  # number of latest checkpoints to keep
    average_last: Positive = 1  # evaluate and predict with the mean of this many latest checkpoints
    keep_best: str = ""  # also keep the best by this metric, smaller is better ("-name": larger); "": none
    log_every: Positive = 10  # steps between logged values
    log_norms: bool = False  # log norms of each layer's activations, gradients, updates and parameters
    log_attention: bool = False  # log each layer's attention entropy and largest score, and the largest logit
    sample_every: Nonnegative = 0  # steps between samples; 0: only at the end
    max_skipped: Nonnegative = 20  # consecutive steps with a non-finite gradient before giving up; 0: never
    rollbacks: Nonnegative = 0  # then go back to the last good checkpoint, at most so often; 0: give up
    # go back also if the loss exceeds its recent median by more; 0: never
    spike: Annotated[NonnegativeFloat, only("rollbacks")] = 0.0
    profile_from: Annotated[Positive, only("profile_steps")] = 10  # step after which the profiler starts
    profile_steps: Nonnegative = 0  # steps to profile; 0: off
    # steps between measurements of every device (see `Stragglers`), a multiple of log_every; 0: none
    devices_every: Nonnegative = 0
    writers: str = "jsonl,tensorboard"  # comma-separated keys of WRITERS; "": none

    def _check_devices(self) -> None:
        if self.devices_every % self.log_every:
            raise UserError(
                f"devices_every: {self.devices_every}; not a multiple of log_every {self.log_every}"
            )

    def _check_average(self) -> None:
        if self.average_last > self.keep_last:
            raise UserError(
                f"average_last: {self.average_last}; only keep_last {self.keep_last} checkpoints are there"
            )
        if self.keep_best:
            raise UserError(f"average_last: {self.average_last} together with keep_best; choose one of them")

    def _check_best(self) -> None:
        if self.checkpoint_every % (self.evaluate_every or self.steps):
            raise UserError(
                f"keep_best: a checkpoint needs an evaluation at its step: checkpoint_every "
                f"{self.checkpoint_every} is not a multiple of evaluate_every {self.evaluate_every}"
            )

    checks: ClassVar = {
        "average_last": _check_average,
        "keep_best": _check_best,
        "devices_every": _check_devices,
        "writers": lambda config: names_of(config.writers),
    }


TAKEN = ("train", "eval", "generate", "answer")
"""Prefixes of metrics that are taken, and cannot name a set."""


@dataclass(frozen=True)
class EvaluateConfig(Bounded):
    """Evaluation during training and by --mode=evaluate."""

    batch_size: Nonnegative = 0  # rows evaluated at once, over all devices; 0: train.batch_size
    also: Place = ""  # further evaluators, comma-separated: positions, choices:FILE ... (EVALUATORS)
    # further data sets by name: sets.wiki=text:GLOB
    sets: Annotated[Mapping[str, str], OnThisSystem()] = dataclasses.field(default_factory=dict)

    def _check_sets(self) -> None:
        for name, source in self.sets.items():
            if not name.isidentifier() or name in TAKEN:
                expected = f"a name of letters, digits and _, and none of {', '.join(TAKEN)}"
                raise UserError(f"sets: {name!r} names a set; expected {expected}")
            if not source:
                raise UserError(f"sets.{name}: {source!r}; expected a source, as data.source is given")

    checks: ClassVar = {"sets": _check_sets}

    @property
    def others(self) -> list[str]:
        """The names in `also`."""
        return [name.strip() for name in self.also.split(",") if name.strip()]


ANOTHER = "with which the parameters compute another function"
"""The effect of a key that exists to change the function of trained parameters."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Bounded):
    """The keys that every run has."""

    experiment: str  # the objective, a key of EXPERIMENTS
    seed: Seed = 0  # seed of initialisation, dropout, data order and augmentation
    deterministic: bool = False  # training gives the same bits each time on the same devices, also on GPUs
    initialize_from: Place = ""  # warm start: folder of a run whose parameters and tokenizer to take, or ""
    # error if that run lacks parameters other than heads, or computes another function with them
    initialize_strict: Annotated[bool, only("initialize_from")] = True
    initialize_std: NonnegativeFloat = 0.0  # std of truncated-normal initialisation of matrices; 0: by layer
    optimizer: OptimizerConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    parallel: ParallelConfig

    scheduled: ClassVar[tuple[str, ...]] = ("batch_size", "window")
    """The keys that `train.until` may change in such a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if vars(self)["model"].lora_rank:
            check_adapters(self)
        if self.train.until:
            self._check_stages()

    def _check_stages(self) -> None:
        from transformer.training.extras.stage_config import check_stages

        check_stages(self)

    def idle(self) -> dict[str, str]:
        """See `Bounded`; with the keys of `data` that no source reads."""
        data: Any = vars(self).get("data")
        unread = data.unread([*self.evaluate.sets.values()]) if hasattr(data, "unread") else {}
        return super().idle() | {f"data.{key}": why for key, why in unread.items()}

    def function(self) -> dict[str, Any]:
        """Key -> value of all that the function of given parameters depends on, and what shapes depend on."""
        model: Any = vars(self)["model"]
        return {f"model.{key}": value for key, value in model.function().items()}

    def effect(self, key: str) -> str | None:
        """See `transformer.training.checkpoints.function.Difference`; `key` is one of `function`."""
        model, name = vars(self)["model"], key.rpartition(".")[2]
        return "" if name in model.harmless else ANOTHER if name in model.changing else None


def check_row_length(config: Any) -> None:
    """Raises if `data.sequence_length` exceeds `model.max_length`."""
    if (length := config.data.sequence_length) > (most := config.model.max_length):
        raise UserError(f"data.sequence_length: {length} is longer than model.max_length {most}")


def check_adapters(config: Any) -> None:
    """Raises if LoRA is trained together with the full parameters."""
    if not config.optimizer.train_only and not any(rule.frozen for rule in config.optimizer.rules):
        setting = f"optimizer.train_only: '' with model.lora_rank {config.model.lora_rank}"
        raise UserError(f"{setting}; expected prefixes: lora, or lora,head of a classifier")


def asks_layers(config: Any) -> bool:
    """Whether layers are to use a named kernel, to return terms of the loss or to be divided into parts;
    whether they can shows only where the train step is traced."""
    loss = vars(config).get("loss")
    terms = isinstance(loss, LossConfig) and bool(loss.model_terms)
    parts = isinstance(loss, LogitsConfig) and loss.vocab_parts > 1
    return terms or parts or any(kind.kernel != "auto" for kind in config.model.kinds.values())
