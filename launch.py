"""Trains, evaluates and uses a model: flags -> a command of `commands/`.

Train (the same command again resumes):  python launch.py --config=configs/lm.py
Measure on the validation data:          python launch.py --workdir=runs/lm --mode=evaluate
Complete a prompt, or lines of a file:   python launch.py --workdir=runs/lm --mode=predict --prompt="def fib("
Likelihood of TEXT<tab>CONTINUATION:      python launch.py --workdir=runs/lm --mode=score --input=pairs.tsv
Look into the embeddings of words:       python launch.py --workdir=runs/lm --mode=analyze --neighbours=return
Print a whole config, changes marked:    python launch.py --workdir=runs/lm --mode=config

Any key of the config can be changed: --config.model.num_layers=6. `--mode=NAME --help` has the flags of a
command, `--config=FILE --help` the keys of a config with their defaults and meanings.
"""

import time

STARTED = time.perf_counter()  # before anything is imported: the time to the first step counts from here

import argparse  # noqa: E402
import functools  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from absl import logging  # noqa: E402

from commands import COMMANDS, find_command, text  # noqa: E402
from transformer import process  # noqa: E402
from transformer.errors import UserError, suggest  # noqa: E402


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raises, instead of printing the usage and leaving."""
        raise UserError(message.removeprefix("argument "))


def main(argv: list[str]) -> int:
    """Runs one command. The exit code is 0; 2 where the user's input was at fault; and where a signal ended
    it 128 and the signal's number, as shells have it: 130 for SIGINT, 143 for SIGTERM."""
    try:
        flags, overrides = parse(argv)
        prepare(flags)
        code = find_command(flags.mode).run(flags, overrides)
        sys.stdout.flush()
        return code
    except UserError as error:
        print("error:", *str(error).split("\n"), file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads our output has had enough; nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """The flags, and the keys to change with their values as text: [("model.num_layers", "6")]."""
    plain, overrides = split_overrides(argv)
    parser = Parser(allow_abbrev=False, add_help=False)
    add_common_flags(parser)
    mode = parser.parse_known_args(plain)[0].mode
    find_command(mode).add_flags(parser.add_argument_group(f"flags of --mode={mode}"))
    flags, unknown = parser.parse_known_args(plain)
    if unknown:
        raise UserError(why_unknown(unknown[0]))
    if flags.help:
        explain(parser, flags, overrides)
        raise SystemExit(0)
    flags.workdir = flags.workdir or default_workdir(flags)
    return flags, overrides


def default_workdir(flags: argparse.Namespace) -> str:
    """The folder of a run of --config where none is named: "runs/lm-tiny" of "configs/lm.py:tiny"."""
    if not flags.config:
        train = flags.mode == "train"
        what = "--config: which one? configs/lm.py, say" if train else "--workdir: which run?"
        raise UserError(f"{what} (--mode={flags.mode})")
    path, _, preset = flags.config.partition(":")
    return str(Path("runs", "-".join(filter(None, [Path(path).stem, preset]))))


def explain(
    parser: argparse.ArgumentParser, flags: argparse.Namespace, overrides: list[tuple[str, str]]
) -> None:
    """Prints the flags of a command, and the keys of a config where one is given."""
    parser.usage = "python launch.py [--mode=NAME] [--FLAG=VALUE ...] [--config.KEY=VALUE ...]"
    plain = argparse.RawDescriptionHelpFormatter
    parser.formatter_class = functools.partial(plain, max_help_position=32, width=110)
    parser.description = __doc__ if flags.mode == "train" else find_command(flags.mode).__doc__
    parser.print_help()
    if flags.config:
        prepare(flags)
        find_command("config").explain(flags.config, overrides)


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every command."""
    add = parser.add_argument
    add("--help", "-h", action="store_true", help="this; with --config=FILE the keys of that config too")
    add("--mode", default="train", choices=[*COMMANDS], help="the command (train)")
    add("--workdir", default="", help="the run's folder (training: runs/<name of the config>)")
    add("--coordinator", help="host:port of the first of several processes; a cluster's are found without")
    add("--num_processes", type=int, help="how many there are")
    add("--process_id", type=int, help="which of them this is, from 0")
    parser.set_defaults(config="", started=STARTED)


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes `--config.KEY=VALUE` and `--config.KEY VALUE` out of the arguments."""
    plain, overrides, rest = [], [], iter(argv)
    for argument in rest:
        if not argument.startswith("--config."):
            plain.append(argument)
            continue
        key, equals, given = argument.removeprefix("--config.").partition("=")
        value = given if equals else next(rest, None)
        if value is None:
            raise UserError(f"--config.{key}: it has no value; --config.{key}=VALUE")
        try:
            overrides.append((key, text(value)))
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--config.{key}: {error}") from None
    return plain, overrides


def why_unknown(argument: str) -> str:
    """What is wrong with a flag that the command does not have: others have it, or it is misspelt."""
    takers: dict[str, list[str]] = {}
    for mode in COMMANDS:
        parser = Parser(add_help=False)
        add_common_flags(parser)
        find_command(mode).add_flags(parser)
        for name in parser._option_string_actions:
            takers.setdefault(name, []).append(f"--mode={mode}")
    name = argument.split("=")[0]
    if name not in takers:
        return f"{argument}: no such flag; {suggest(name, takers)}"
    return f"{name}: only {' and '.join(takers[name])} {'take' if takers[name][1:] else 'takes'} it"


def prepare(flags: argparse.Namespace) -> None:
    """What must be set before JAX is loaded, unless the environment says otherwise; and the meeting of
    processes, where there are several."""
    for name, value in process.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.set_verbosity(logging.ERROR)  # what TFDS and orbax do, line by line
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    counts = (os.environ.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    pod = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if flags.coordinator or pod or any(count != "1" for count in counts):
        meet(flags)


def meet(flags: argparse.Namespace) -> None:
    """Lets JAX find the other processes of the run."""
    import jax

    try:
        jax.distributed.initialize(flags.coordinator, flags.num_processes, flags.process_id)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"--coordinator: the processes did not meet: {error}") from error


if __name__ == "__main__":
    process.restart_with_malloc()
    sys.exit(main(sys.argv[1:]))
