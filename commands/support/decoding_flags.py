"""Flags of decoding: keys of a run's config, and a draft model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformer.data.line_escapes import unescape
from transformer.errors import UserError
from workdir.folder import stored_config
from workdir.opening import load, named

if TYPE_CHECKING:
    from workdir.opening import Overrides


def with_decoding(overrides: "Overrides", workdir: str, flags: Mapping[str, str | list[str]]) -> "Overrides":
    """The overrides of a run's config, with those of decoding flags."""
    return [*overrides, *decoding_keys(stored_config(named(workdir)), flags)]


def add_draft(experiment: Any, draft: str, draft_tokens: int) -> None:
    """Uses the model in the folder `draft` for speculative decoding.

    Raises:
      UserError: one of the two is not a language model, or the draft model does not fit (`use_draft`).
    """
    if not experiment.is_language_model:
        kind = experiment.config.experiment
        raise UserError(f"--draft: this is a run of {kind}; expected a language model")
    try:
        run, params = load(draft)
    except UserError as error:
        raise UserError(str(error).replace("--workdir", "--draft", 1)) from None
    experiment.use_draft(run.experiment, params, draft_tokens)


def decoding_keys(values: dict[str, Any], flags: Mapping[str, str | list[str]]) -> list[tuple[str, str]]:
    """The config keys for decoding flags, {"temperature": "0.5"}, in the run's group `sample` or `generate`.
    Stop strings have the escapes of output lines.

    Raises:
      UserError: the run generates no text, or its decoding has no such key.
    """
    group = next((group for group in ("sample", "generate") if group in values), "")
    keys = []
    for name, value in flags.items():
        if not group:
            kind = values.get("experiment")
            raise UserError(f"--{name}: this is a run of {kind}, which writes no text; leave it out")
        if name not in values[group]:
            known = ", ".join(values[group])
            raise UserError(f"--{name}: the config of this run has no {group}.{name}; {group} has {known}")
        keys.append((f"{group}.{name}", value if isinstance(value, str) else repr([*map(unescape, value)])))
    return keys
