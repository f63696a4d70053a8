"""What is measured besides the validation split, and in which batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformer.errors import UserError

TAKEN = ("train", "eval", "generate", "answer")
"""Beginnings of names under which a run measures something else."""


@dataclass(frozen=True)
class EvaluateConfig:
    """What evaluations measure, and how; `configs/base/` says what each key means."""

    batch_size: int = 0
    also: str = ""
    sets: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_size < 0:
            raise UserError(f"batch_size: {self.batch_size}; expected rows, or 0: as many as in training")
        for name, source in self.sets.items():
            if not name.isidentifier() or name in TAKEN:
                expected = f"a name of letters, digits and _, and none of {', '.join(TAKEN)}"
                raise UserError(f"sets: {name!r} names a set; expected {expected}")
            if not isinstance(source, str) or not source:
                raise UserError(f"sets.{name}: {source!r}; expected a source, as data.source is given")

    @property
    def others(self) -> list[str]:
        """The names of the evaluators that `also` lists."""
        return [name.strip() for name in self.also.split(",") if name.strip()]
