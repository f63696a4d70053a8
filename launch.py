"""Trains, evaluates and uses a model.

Train (the same command again resumes):  python launch.py --config=configs/lm.py
Branch a run off with changed keys:      python launch.py --mode=fork --workdir=runs/lm --to=runs/branch
Evaluate on the validation data:         python launch.py --workdir=runs/lm --mode=evaluate
Complete a prompt, or lines of a file:   python launch.py --workdir=runs/lm --mode=predict --prompt="def fib("
Likelihood of TEXT<tab>CONTINUATION:     python launch.py --workdir=runs/lm --mode=score --input=pairs.tsv
Analyse word embeddings:                 python launch.py --workdir=runs/lm --mode=analyze --neighbours=return
Logit lens, heads, activation patching:  python launch.py --workdir=runs/lm --mode=inspect --prompt="def fib("
Print a whole config, changes marked:    python launch.py --workdir=runs/lm --mode=config
Plan a run for a cluster:                python launch.py --mode=plan --config=configs/lm.py --topology=h100:8
Train runs that differ in some keys:     python launch.py --mode=sweep --config=configs/lm.py --sweep seed=0,1
Compare runs:                            python launch.py --mode=table --runs 'runs/lm-sweep/*'
Is a change better than chance?          python launch.py --mode=compare --config=configs/lm.py --b=KEY=VALUE
Write the report of a run again:         python launch.py --workdir=runs/lm --mode=report
What a training step has read:           python launch.py --workdir=runs/lm --mode=batch --step=100
Which layer went wrong in a step?        python launch.py --workdir=runs/lm --mode=replay --step=100
Scaling laws, and a forecast by them:    python launch.py --mode=scaling --config=configs/lm.py --budgets=...
Does it compute what it says? (float64)  python launch.py --mode=verify --config=configs/lm.py
Do rates carry over to other widths?     python launch.py --mode=coordinates --config=configs/lm.py
A model of Hugging Face as a run:        python launch.py --mode=import --from=models/gpt2 --workdir=runs/gpt2
A run as a model of Hugging Face:        python launch.py --mode=export --workdir=runs/lm --to=models/lm

Any key of the config can be set: --config.model.num_layers=6. `--mode=NAME --help` lists the flags of a
command, `--config=FILE --help` the keys of a config that people change first, with their defaults and
meanings, and `--config=FILE --help=all` all of them.
"""

import gc
import time

from transformer import requirements, runtime

STARTED = time.perf_counter()  # before the imports, for the time to the first step
if __name__ == "__main__":
    runtime.restart_with_malloc()
    requirements.check()
    # Imports and tracing make a million objects that stay; looking through them takes a fifth of the start.
    gc.set_threshold(200_000, 20, 50)

import argparse  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from logging import getLogger  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from absl import logging  # noqa: E402

from commands import COMMANDS, MODES, NO_WORKDIR, find_command, place, text  # noqa: E402
from commands.support import ending, help_page, misspellings  # noqa: E402
from transformer import distributed, schedulers  # noqa: E402
from transformer.errors import UserError  # noqa: E402
from workdir.included import include  # noqa: E402


class Parser(argparse.ArgumentParser):
    """A parser with one-line errors."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raises `UserError` instead of printing the usage and exiting."""
        raise UserError(misspellings.of_choice(message.removeprefix("argument ")))


def main(argv: list[str]) -> int:
    """Runs one command. Returns the exit code: 0; 1 if the disk is full or fails; 2 after a mistake of the
    user; 128 + the number of a signal that ended it, 130 for SIGINT and 143 for SIGTERM."""
    try:
        flags, overrides = parse(argv)
        prepare(flags)
        code = find_command(flags.mode).run(flags, overrides)
        sys.stdout.flush()
        if distributed.PLACES:
            distributed.wait_for_all()
        return code
    except BaseException as error:
        return ending.code_of(error, any(argument.split("=")[0] == "--config" for argument in argv))


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """The flags, and the config keys to set with their values as text: [("model.num_layers", "6")]."""
    plain, overrides = split_overrides(argv)
    parser = Parser(allow_abbrev=False, add_help=False)
    add_common_flags(parser)
    mode = parser.parse_known_args(plain)[0].mode
    find_command(mode).add_flags(parser.add_argument_group(f"flags of --mode={mode}"))
    flags, unknown = parser.parse_known_args(plain)
    if unknown:
        raise UserError(why_unknown(unknown[0], mode))
    if overrides and not flags.include:
        misspellings.check_keys(overrides, flags.config)
    if flags.help:
        explain(parser, flags, overrides)
        raise SystemExit(0)
    flags.workdir = flags.workdir or default_workdir(flags)
    return flags, overrides


def default_workdir(flags: argparse.Namespace) -> str:
    """The default folder: "runs/lm-tiny" for "configs/lm.py:tiny", "runs/lm-tiny-sweep" for a sweep of it."""
    if flags.missing and not flags.config:
        raise UserError(f"{flags.missing} (--mode={flags.mode})")
    path, _, preset = flags.config.partition(":")
    return str(Path("runs", "-".join(filter(None, [Path(path).stem, preset, flags.suffix]))))


def explain(
    parser: argparse.ArgumentParser, flags: argparse.Namespace, overrides: list[tuple[str, str]]
) -> None:
    """Prints the flags of a command, and keys of a config if one is given: with --help=all, all of them."""
    help_page.show(parser, __doc__ if flags.mode == "train" else find_command(flags.mode).__doc__)
    if flags.config:
        prepare(flags)
        find_command("config").explain(flags.config, overrides, flags.help == "all")


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of every command."""
    add = parser.add_argument
    keys = "this help; with --config=FILE first keys of that config too, with --help=all all of them"
    add("--help", "-h", nargs="?", const=True, choices=["all"], metavar="all", help=keys)
    add("--mode", default="train", choices=[*COMMANDS], metavar="NAME", help=f"the command: {MODES} (train)")
    add("--workdir", type=place, default="", help="the run's folder (training: runs/<name of the config>)")
    add("--coordinator", help="host:port of the first process; not needed on clusters that JAX knows")
    add("--num_processes", type=int, help="the number of processes")
    add("--process_id", type=int, help="the number of this process, from 0")
    add("--heartbeat_seconds", type=int, default=30, help="silence of a process after which all end (30)")
    add("--include", type=place, default="", help="a Python file to run first, with a mixer, a loss ...")
    parser.set_defaults(config="", started=STARTED, missing=NO_WORKDIR, suffix="", alone=False)


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes `--config.KEY=VALUE` and `--config.KEY VALUE` out of the arguments."""
    plain, overrides, rest = [], [], iter(argv)
    for argument in rest:
        if argument.startswith("--config."):
            overrides.append(override_in(argument, rest))
        else:
            plain.append(argument)
    return plain, overrides


def override_in(argument: str, rest: Iterator[str]) -> tuple[str, str]:
    """The key and the value of `--config.KEY=VALUE`, or of `--config.KEY` with the value in the `rest`."""
    key, equals, written = argument.removeprefix("--config.").partition("=")
    value = written if equals else next(rest, None)
    if value is None:
        raise UserError(f"--config.{key}: it has no value; --config.{key}=VALUE")
    try:
        return key, text(value)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"--config.{key}: {error}") from None


def why_unknown(argument: str, mode: str) -> str:
    """Why a command, `mode`, does not have a flag: it belongs to other commands, or is misspelt."""
    takers: dict[str, list[str]] = {}
    for command in COMMANDS:
        parser = Parser(add_help=False)
        add_common_flags(parser)
        find_command(command).add_flags(parser)
        for name in parser._option_string_actions:
            takers.setdefault(name, []).append(command)
    return misspellings.of_flag(argument, mode, takers)


def prepare(flags: argparse.Namespace) -> None:
    """Sets what must be set before JAX is imported, unless the environment does, and connects the processes
    if there are several."""
    for name, value in runtime.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.set_verbosity(logging.ERROR)  # hides the logs of TFDS and orbax
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    several = bool(flags.coordinator) or schedulers.are_several(os.environ)
    if several or schedulers.has_tpu():
        from commands.support.rendezvous import connect_processes

        connect_processes(flags, certain=several)
    elif flags.include:
        include(flags.include)


def unless_unread(unraisable: Any) -> None:
    """Prints an error that cannot be raised, but none of what TensorStore leaves after a save that failed:
    that is raised as well."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    sys.unraisablehook = unless_unread
    getLogger("asyncio").disabled = True  # as above, of orbax
    code = main(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends what libraries do at exit, silently
    sys.exit(code)
