"""Predicts with a trained model: completes a prompt, or answers the lines of a file.

python launch.py --workdir=runs/lm --mode=predict --prompt="def fib(" --temperature=0.5
python launch.py --workdir=runs/lm --mode=predict --input=texts.txt --output=answers.txt
"""

import argparse
import itertools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from commands import add_step, add_texts, place, text
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.training.run import Run
    from workdir.opening import Overrides

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "num_samples", "max_new_tokens", "weights", "cache")
"""Keys of the config groups `sample` and `generate`."""

DECODING = (*SAMPLING, "beam_size", "length_penalty", "n_best", "with_scores")
"""Keys that are also flags; the last ones are of beam search, in `generate` alone."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    add_texts(parser, "a text to complete, or to answer")
    add_step(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples (0)")
    for name in DECODING:
        switch: Any = {"nargs": "?", "const": "true"} if name == "with_scores" else {}
        meaning = f"overrides {name} in the group sample or generate of the run's config"
        parser.add_argument(f"--{name}", type=text, help=meaning, **switch)
    meaning = "run folder of a smaller language model with the same tokenizer, for speculative decoding"
    parser.add_argument("--draft", type=place, help=meaning)
    meaning = "with --draft: the number of proposed tokens that the model reads in a pass (4)"
    parser.add_argument("--draft_tokens", type=int, default=4, help=meaning)
    meaning = r"stop string, before which an answer ends; \n is a line break; may be repeated"
    parser.add_argument("--stop", type=text, action="append", help=meaning)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Answers --prompt, or each line of the file --input (standard input), or each record of a table (.csv,
    .tsv, .jsonl, .parquet) or a source KIND:WHERE, with one line per sample. Writes to the file --output
    (standard output), and continues an interrupted output.

    --draft is the run folder of a smaller language model with the same tokenizer, for speculative decoding:
    the output is the same at temperature 0, and has the same distribution at any other.

    At a terminal the only answer to a prompt is streamed. In output lines a line break is written \\n and a
    backslash \\\\.
    """
    if not 0 <= flags.seed < 1 << 32:
        raise UserError(f"--seed: {flags.seed}; expected a number from 0 to 2^32 - 1")
    from workdir.opening import reopen_run

    if flags.input is not None:
        from commands.support.texts import check_files

        check_files(flags.prompt, flags.input, flags.output)
    if decoding := {name: value for name in (*DECODING, "stop") if (value := vars(flags)[name]) is not None}:
        from commands.support.decoding_flags import with_decoding

        overrides = with_decoding(overrides, flags.workdir, decoding)
    run = reopen_run(flags.workdir, overrides)
    if flags.draft:
        from commands.support.decoding_flags import add_draft

        add_draft(run.experiment, flags.draft, flags.draft_tokens)
    if flags.prompt is not None:
        answer_prompt(run, flags)
        return 0
    from commands.support.answered_input import answer_input

    answer_input(run, flags, overrides)
    return 0


def answer_prompt(run: "Run", flags: argparse.Namespace) -> None:
    """Writes the answers to --prompt, after the prompt if they continue it; at a terminal a single answer is
    streamed."""
    import jax

    from commands.support.answer_files import writing
    from workdir.opening import chosen

    experiment: Any = run.experiment
    before = flags.prompt if experiment.continues else ""
    at_terminal = not flags.output and sys.stdout.isatty() and jax.process_count() == 1
    with writing(flags.output) as out, run.placed():
        params = experiment.reduced(run.restore_params(chosen(run, flags.workdir, flags.step)))
        pieces = experiment.stream(params, flags.prompt, flags.seed) if at_terminal else None
        if pieces is not None:
            print_pieces(itertools.chain([before], pieces, ["\n"]))
            return
        for answers in experiment.predict(params, [flags.prompt], flags.seed):
            out.write([before + answer for answer in answers])


def print_pieces(pieces: Iterable[str]) -> None:
    """Prints pieces as they arrive."""
    for piece in pieces:
        print(piece, end="", flush=True)
