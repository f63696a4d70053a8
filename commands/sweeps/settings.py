"""The runs that a command trains: flags, keys for all runs, and the setting of each."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from commands.sweeps.algebra import Setting, as_overrides
from commands.sweeps.jobs import Job
from transformer.config import refuse_idle, to_values
from transformer.errors import UserError
from workdir.opening import ConfigSource, Overrides, check_config, read_to_train


def check_flags(flags: argparse.Namespace) -> None:
    """Raises `UserError` without a config file, or for a bad number of jobs."""
    if not flags.config:
        raise UserError("--config is required, such as configs/lm.py (--mode=sweep)")
    if flags.jobs < 1:
        raise UserError(f"--jobs: {flags.jobs}; expected 1 or more")


def words(flag: str, text: str) -> list[str]:
    """The words of a flag, as a shell divides them. Raises `UserError` for a quote that is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{flag}: {text!r} has {str(error).lower()}") from None


def refuse_twice(overrides: Overrides, setting: Setting, kind: str) -> None:
    """Raises `UserError` for a key that is given for all runs, and differs between them."""
    if twice := {key for key, _ in overrides} & setting.keys():
        raise UserError(f"--config.{min(twice)}: it is a key of the {kind} too")


def check_config_to_train(config: ConfigSource, overrides: Overrides) -> Any:
    """The checked, frozen config of a run that is to be trained in a folder of its own.

    Raises:
      UserError: an impossible config, or a key without effect that was changed.
    """
    frozen = check_config(read_to_train(config, overrides), overrides)
    refuse_idle(frozen)
    return frozen


def make_job(flags: argparse.Namespace, overrides: Overrides, name: str, setting: Setting) -> Job:
    """The run with the keys that are given for all and those of its setting. Raises `UserError` for bad keys
    or values."""
    keys = [*overrides, *as_overrides(setting)]
    config, folder = check_config_to_train(flags.config, keys), Path(flags.workdir) / name
    arguments = [f"--workdir={folder}", f"--config={flags.config}", *(f"--config.{k}={v}" for k, v in keys)]
    return Job(name, folder, arguments, to_values(config))
