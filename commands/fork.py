"""Branches a run off: a new folder continues from one of its checkpoints with changed keys, and is trained.

python launch.py --mode=fork --workdir=runs/lm --at_step=200 --to=runs/branch --config.train.steps=400

The same command again resumes the fork, as `--workdir=runs/branch` does.
"""

import argparse
from typing import TYPE_CHECKING, Any

from commands import add_step, place, train
from transformer.errors import UserError

if TYPE_CHECKING:
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    add_step(parser, "--at_step", "latest")
    parser.add_argument("--to", type=place, help="the new folder")
    parser.add_argument(
        "--fresh_optimizer", action="store_true", help="reset the optimizer's state, with a warm-up"
    )
    parser.add_argument("--accept_data", action="store_true", help="continue with data that have changed")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Makes the new folder unless it is there, and trains; returns the exit code."""
    if not flags.to:
        raise UserError("--to: which new folder? runs/branch, say (--mode=fork)")
    from workdir.forking import make_fork

    make_fork(flags.workdir, flags.at_step, flags.to, overrides, flags.fresh_optimizer, flags.accept_data)
    flags.workdir, flags.config = flags.to, ""
    return train.run(flags, ())
