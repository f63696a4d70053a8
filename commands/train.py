"""Trains a run, or resumes it if its folder has checkpoints.

python launch.py --config=configs/lm.py [--workdir=runs/mine] [--config.model.num_layers=4]
"""

import argparse
import signal
from typing import TYPE_CHECKING, Any

from commands import NO_CONFIG, place

if TYPE_CHECKING:
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing=NO_CONFIG)
    parser.add_argument(
        "--config", type=place, help="a config file, configs/lm.py, or a preset of it, configs/lm.py:tiny"
    )
    parser.add_argument("--accept_data", action="store_true", help="resume with data that have changed")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Trains; returns the exit code."""
    from workdir.session import train

    reason = train(flags.workdir, overrides, flags.config, flags.started, flags.accept_data)
    return 0 if reason == "finished" else 128 + signal.Signals[reason]
