"""What a sweep and a search make runs of: flags, keys for all runs, and the setting of each."""

import argparse
from pathlib import Path

from commands.jobs import Job
from commands.opening import Overrides, check_config, read_config
from transformer.config import to_values
from transformer.errors import UserError
from transformer.sweep import Setting, as_overrides


def check_flags(flags: argparse.Namespace) -> None:
    """Raises `UserError` without a config file, or for a bad number of jobs."""
    if not flags.config:
        raise UserError("--config: which one? configs/lm.py, say (--mode=sweep)")
    if flags.jobs < 1:
        raise UserError(f"--jobs: {flags.jobs}; expected 1 or more")


def refuse_twice(given: Overrides, setting: Setting, what: str) -> None:
    """Raises `UserError` for a key that is given for all runs, and differs between them."""
    if twice := {key for key, _ in given} & setting.keys():
        raise UserError(f"--config.{min(twice)}: it is a key of the {what} too")


def make_job(flags: argparse.Namespace, given: Overrides, name: str, setting: Setting) -> Job:
    """The run with the keys that are given for all and those of its setting. Raises `UserError` for bad keys
    or values."""
    keys = [*given, *as_overrides(setting)]
    config, folder = check_config(read_config(flags.config), keys), Path(flags.workdir) / name
    arguments = [f"--workdir={folder}", f"--config={flags.config}", *(f"--config.{k}={v}" for k, v in keys)]
    return Job(name, folder, arguments, to_values(config))
