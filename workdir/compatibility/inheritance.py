"""Inheritance from the run whose parameters a run starts from: the keys with which they compute the same
function, and the tokenizer."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments import find_experiment
from transformer.config import from_values
from transformer.errors import UserError
from transformer.models.model_config import ModelConfig
from transformer.run_folder import HUB, REMOTE, RunFolder, why_not_local
from transformer.training.checkpoints.checkpoint import split_step
from transformer.training.checkpoints.function import Difference, differences
from transformer.training.checkpoints.initialize import Checkpoint, Origin
from workdir.folder import stored_config

TOKENIZER = ("data.tokenizer", "data.vocab_size", "data.lowercase", "data.strip_accents")
"""Keys by which a tokenizer is made."""

WRITTEN_BY = {"sample": ("end_tokens",), "generate": ("suppress", "first"), "data": ("first_token",)}
"""Keys of other groups that a warm start takes, if they are set there: which tokens end a text of the model,
which are never written, and which begin one."""

Values = Mapping[str, Any]
"""The values of a config as nested mappings."""


def find_hub(name: Any) -> Any:
    """The `Hub` that a value of `initialize_from` names; None if it names a run."""
    if not isinstance(name, str) or not name.startswith(HUB):
        return None
    from workdir.peft_hub import find

    return find(name)


def find_origin(name: str) -> Origin:
    """The parameters that a value of `initialize_from` names, with the config of their run."""
    return find_hub(name) or Checkpoint.named(name, _config(_values_of(name), name))


def origin_values(name: Any) -> Values:
    """The values of the run that a value of `initialize_from` names; keys of `model` that follow from others
    are set."""
    hub = find_hub(name)
    values, config = (hub.values, hub.config) if hub else (_values_of(name), None)
    return settled(values, config or _config(values, name))


def settled(values: Values, config: Any) -> dict[str, Any]:
    """The values of `config` in which keys of `model` that follow from others are set."""
    more = config.model.settled() if isinstance(config.model, ModelConfig) else {}
    return {**values, "model": {**values["model"], **more}}


def inherited(values: Values, theirs: Values) -> dict[str, Any]:
    """The keys of `model` that a run takes from its origin, by the values of both."""
    kind: Any = find_experiment(values.get("experiment")).Config.__dataclass_fields__["model"].type
    model = theirs.get("model", {})
    if issubclass(kind, ModelConfig):
        return kind.inherited(model, values["model"])
    return {key: value for key, value in model.items() if key in values["model"]}


def check_tokenizer(overrides: Iterable[tuple[str, str]], values: Values, theirs: Values) -> None:
    """Raises `UserError` if a key of `overrides`, with its value in `values`, asks for a tokenizer other
    than that of the run whose tokenizer is taken."""
    for key, _ in overrides:
        name = key.removeprefix("data.")
        if key in TOKENIZER and name in theirs["data"]:
            stored, new = theirs["data"][name], values["data"][name]
            if stored != new:
                raise UserError(
                    f"config.{key}: {new!r}, but the tokenizer of {values['initialize_from']} is taken "
                    f"({stored!r}); leave it out"
                )


def implied(now: Any, before: Any, overrides: Iterable[tuple[str, str]]) -> list[Difference]:
    """The keys by which the parameters of a run compute another function with the config `now` than with the
    config `before`, without those of `model` in `overrides`."""
    changed_keys = [key for key, _ in overrides if key.startswith("model.")]
    names, groups = {key.rpartition(".")[2] for key in changed_keys}, tuple(f"{key}." for key in changed_keys)
    return [
        difference
        for difference in differences(now, before)
        if difference.effect != ""
        and not (difference.key.startswith("model.") and difference.key.rpartition(".")[2] in names)
        and not difference.key.startswith(groups)
    ]


def _values_of(name: Any) -> dict[str, Any]:
    if REMOTE.search(str(name)):
        raise UserError(f"config.initialize_from: {name} {why_not_local(name)}")
    try:
        return stored_config(RunFolder(split_step(name)[0]))
    except UserError as error:
        raise UserError(str(error).replace("--workdir", "config.initialize_from", 1)) from None


def _config(values: Values, name: Any) -> Any:
    try:
        return from_values(find_experiment(values.get("experiment")).Config, values)
    except UserError as error:
        raise UserError(f"config.initialize_from: {name}: {error}") from None
