"""Trains, evaluates and uses a model: flags -> config -> experiment -> mode.

Train (the same command again resumes):  python launch.py --config=configs/lm.py
Measure on the validation data:          python launch.py --workdir=runs/lm --mode=evaluate
Complete a prompt, or lines of a file:   python launch.py --workdir=runs/lm --mode=predict --prompt="def fib("
Likelihood of TEXT<tab>CONTINUATION:      python launch.py --workdir=runs/lm --mode=score --input=pairs.tsv
Look into the embeddings of words:       python launch.py --workdir=runs/lm --mode=analyze --neighbours=return

Any key of the config can be changed: --config.model.num_layers=6
"""

import time

STARTED = time.perf_counter()  # before anything is imported: the time to the first step counts from here

import argparse  # noqa: E402
import functools  # noqa: E402
import io  # noqa: E402
import itertools  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from absl import logging  # noqa: E402

from transformer.backend import will_be_cpu  # noqa: E402
from transformer.errors import UserError  # noqa: E402
from transformer.freeze import suggest  # noqa: E402
from transformer.process import keep_programs  # noqa: E402

MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    ":glibc.malloc.mmap_threshold=1099511627776:glibc.malloc.trim_threshold=1099511627776"
}
"""Makes malloc keep what is freed, in one heap for all threads, of pages of 2 MB. XLA on a CPU takes the
memory of each step anew from malloc; to give it back and map it in again is up to half of a step's time."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "num_samples", "max_new_tokens", "stop")
PREDICT = ("prompt", "input", "output", "seed", "step", *SAMPLING)
SCORE = ("prompt", "input", "output", "step")
EVALUATE = ("split", "input", "output", "step")
ANALYZE = {
    "words": "words, with commas between, to compare with one another",
    "neighbours": "words whose nearest others to list",
    "analogy": "three words a,b,c: what is nearest to a - b + c?",
    "analogies": "a file of questions, in the form of word2vec's questions-words.txt",
    "contexts": "sentences, or a file of them, in which each of --words is compared with itself",
    "map": "a picture to draw of them, map.png, say",
}


TAKES = {
    "train": ("accept_data",),
    "evaluate": EVALUATE,
    "predict": PREDICT,
    "score": SCORE,
    "analyze": ("step", *ANALYZE),
}
"""Mode -> the flags that not all have."""

PATHS = ("--config=", "--workdir=", "--input=", "--output=", "--analogies=", "--map=")
"""Flags whose values name files: these may be any bytes, as file names may."""


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
        # With JAX and the rest, which is too slow for a misspelt flag.
        from experiments import evaluating, modes, predicting

        if flags.mode == "train":
            reason = modes.train(flags.workdir, overrides, flags.config, STARTED, flags.accept_data)
            return 0 if reason == "finished" else 128 + signal.Signals[reason]
        if flags.mode == "evaluate":
            split = flags.split or "validation"
            files = {"source": flags.input, "target": flags.output}
            evaluating.evaluate(flags.workdir, overrides, split=split, step=flags.step, **files)
        elif flags.mode == "analyze":
            modes.analyze(
                flags.workdir, overrides, flags.step, **{name: getattr(flags, name) for name in ANALYZE}
            )
        elif flags.mode == "score":
            files = {"source": flags.input, "target": flags.output}
            predicting.score(flags.workdir, overrides, prompt=flags.prompt, step=flags.step, **files)
        else:
            files = {"source": flags.input, "target": flags.output}
            decoding = {name: getattr(flags, name) for name in SAMPLING if getattr(flags, name) is not None}
            asked = {
                "prompt": flags.prompt,
                "seed": flags.seed or 0,
                "step": flags.step,
                "decoding": decoding,
            }
            predicting.predict(flags.workdir, overrides, **asked, **files)
        sys.stdout.flush()
        return 0
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
    parser = Parser(
        usage="python launch.py [--FLAG=VALUE ...] [--config.KEY=VALUE ...]",
        description=__doc__,
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=32, width=110
        ),
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", default="", help="a config file, configs/lm.py, or a preset of it, configs/lm.py:tiny")
    add("--workdir", default="", help="the run's folder (training: runs/<name of the config>)")
    add("--mode", default="train", choices=["train", "evaluate", "predict", "score", "analyze"])
    add("--prompt", help="predict: a text to complete; score: TEXT, a tab, CONTINUATION")
    add("--input", help="predict, score: a file of such texts, one a line (standard input); evaluate: data")
    add("--output", help="predict, score: a file for the answers (standard output); evaluate: predictions")
    add("--seed", type=int, help="predict: another one gives other samples (0)")
    for name in SAMPLING:
        action, more = (
            ("append", r"; \n is a line break, and it may be given again")
            if name == "stop"
            else ("store", "")
        )
        add(
            f"--{name}",
            action=action,
            help=f"predict: instead of the run's sample.{name} or generate.{name}{more}",
        )
    add("--accept_data", action="store_const", const=True, help="train: go on with data that have changed")
    add("--step", type=_step, help="which checkpoint: a step, best or latest (the best, where it is kept)")
    add("--split", choices=["train", "validation", "test"], help="evaluate: which one (validation)")
    for name, what in ANALYZE.items():
        add(f"--{name}", help=f"analyze: {what}")
    add("--coordinator", help="host:port of the first of several processes; a cluster's are found without")
    add("--num_processes", type=int, help="how many there are")
    add("--process_id", type=int, help="which of them this is, from 0")
    for argument in argv:
        if not argument.startswith(PATHS) and not _is_utf8(argument):
            name, _, value = argument.rpartition("=")
            raise UserError(f"{name or 'the arguments'}: {os.fsencode(value)!r} is not UTF-8")
    plain, overrides = split_overrides(argv)
    flags, unknown = parser.parse_known_args(plain)
    if unknown:
        names = [name for action in parser._actions for name in action.option_strings if name != "-h"]
        raise UserError(f"{unknown[0]}: no such flag; {suggest(unknown[0].split('=')[0], names)}")
    for name in dict.fromkeys(itertools.chain.from_iterable(TAKES.values())):
        takers = [mode for mode, takes in TAKES.items() if name in takes]
        if getattr(flags, name) is not None and flags.mode not in takers:
            take = "takes" if len(takers) == 1 else "take"
            raise UserError(f"--{name}: only {' and '.join(f'--mode={mode}' for mode in takers)} {take} it")
    if flags.seed is not None and not 0 <= flags.seed < 1 << 32:
        raise UserError(f"--seed: {flags.seed}; expected a number from 0 to 2^32 - 1")
    if flags.prompt is not None and flags.input is not None:
        raise UserError("--input: there is a --prompt already; give one of them")
    if flags.config and flags.mode != "train":
        raise UserError(f"--config: --mode={flags.mode} takes the config that --workdir keeps; leave it out")
    if not flags.workdir and not flags.config:
        what = "--config: which one? configs/lm.py, say" if flags.mode == "train" else "--workdir: which run?"
        raise UserError(f"{what} (--mode={flags.mode})")
    path, _, preset = flags.config.partition(":")
    flags.workdir = flags.workdir or str(Path("runs", "-".join(filter(None, [Path(path).stem, preset]))))
    return flags, overrides


def _step(text: str) -> int | str:
    if text in ("best", "latest") or text.isdecimal():
        return int(text) if text.isdecimal() else text
    raise argparse.ArgumentTypeError(f"{text!r}; expected a number, best or latest")


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes `--config.KEY=VALUE` and `--config.KEY VALUE` out of the arguments."""
    plain, overrides, rest = [], [], iter(argv)
    for argument in rest:
        if not argument.startswith("--config."):
            plain.append(argument)
            continue
        key, equals, text = argument.removeprefix("--config.").partition("=")
        value = text if equals else next(rest, None)
        if value is None:
            raise UserError(f"--config.{key}: it has no value; --config.{key}=VALUE")
        overrides.append((key, value))
    return plain, overrides


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def prepare(flags: argparse.Namespace) -> None:
    """What must be set before JAX is loaded, unless the environment says otherwise; and the meeting of
    processes, where there are several."""
    keep_programs()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's warnings
    logging.set_verbosity(logging.ERROR)  # what TFDS and orbax do, line by line
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    counts = (os.environ.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    pod = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if flags.coordinator or pod or any(count != "1" for count in counts):
        import jax

        try:
            jax.distributed.initialize(flags.coordinator, flags.num_processes, flags.process_id)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"--coordinator: the processes did not meet: {error}") from error


def with_malloc_kept() -> None:
    """Starts this program again with `MALLOC`, which is read before any of it runs, unless it is set, or the
    memory that a step takes is not the host's."""
    if sys.platform == "linux" and not MALLOC.keys() & os.environ.keys() and will_be_cpu():
        os.execve(sys.executable, sys.orig_argv, os.environ | MALLOC)


if __name__ == "__main__":
    with_malloc_kept()
    sys.exit(main(sys.argv[1:]))
