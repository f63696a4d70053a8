"""The keys of two configs that make the same parameters compute two functions."""

from dataclasses import dataclass
from typing import Any

from transformer.training.run_config import ANOTHER, RunConfig


@dataclass(frozen=True)
class Difference:
    """A key with different values in two configs, and `effect`: what it does to the parameters of one in a
    run of the other, in words; "": nothing; None: they compute another function, which the key is not for."""

    key: str
    there: Any
    here: Any
    effect: str | None

    def __str__(self) -> str:
        return f"{self.key} is {self.there!r} there and {self.here!r} here"

    def explained(self) -> str:
        """With its effect, in words."""
        return f"{self}, {ANOTHER if self.effect is None else self.effect}"


def differences(here: RunConfig, there: RunConfig) -> list[Difference]:
    """The keys that both configs have, with an effect in both."""
    ours, theirs = here.function(), there.function()
    return [
        Difference(key, theirs[key], ours[key], here.effect(key))
        for key in ours
        if key in theirs and theirs[key] != ours[key]
    ]
