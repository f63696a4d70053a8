"""Predicts with a trained model: completes a prompt, or answers the lines of a file.

python launch.py --workdir=runs/lm --mode=predict --prompt="def fib(" --temperature=0.5
python launch.py --workdir=runs/lm --mode=predict --input=texts.txt --output=answers.txt
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from commands import add_step, add_texts, place, text
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.training.checkpoints.checkpoint import Step
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
        what = f"overrides {name} in the group sample or generate of the run's config"
        parser.add_argument(f"--{name}", type=text, help=what, **switch)
    what = "run folder of a smaller language model with the same tokenizer, for speculative decoding"
    parser.add_argument("--draft", type=place, help=what)
    what = "with --draft: the number of proposed tokens that the model reads in a pass (4)"
    parser.add_argument("--draft_tokens", type=int, default=4, help=what)
    what = r"stop string, before which an answer ends; \n is a line break; may be repeated"
    parser.add_argument("--stop", type=text, action="append", help=what)


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
    from commands.support.texts import check_files
    from workdir.folder import stored_config
    from workdir.opening import named, reopen_run

    check_files(flags.prompt, flags.input, flags.output)
    if decoding := {name: value for name in (*DECODING, "stop") if (value := vars(flags)[name]) is not None}:
        overrides = [*overrides, *decoding_keys(stored_config(named(flags.workdir)), decoding)]
    run = reopen_run(flags.workdir, overrides)
    if flags.draft:
        add_draft(run.experiment, flags.draft, flags.draft_tokens)
    if flags.prompt is None:
        answer_input(run, flags, overrides)
    else:
        answer_prompt(run, flags)
    return 0


def answer_prompt(run: "Run", flags: argparse.Namespace) -> None:
    """Writes the answers to --prompt, after the prompt if they continue it; at a terminal a single answer is
    streamed."""
    import jax

    from commands.support.texts import writing
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


def answer_input(run: "Run", flags: argparse.Namespace, overrides: "Overrides") -> None:
    """Writes the answers to the texts of --input, one per line, after those of an interrupted command."""
    import jax
    from tqdm import tqdm

    from commands.support.texts import one_line, open_input, writing
    from transformer.data.cache.token_cache import BAR
    from workdir.opening import chosen

    experiment: Any = run.experiment
    given = open_input(flags.input, experiment)
    step = chosen(run, flags.workdir, flags.step)
    alone = jax.process_count() == 1
    of = answers_of(run, flags, step, overrides, given.digest) if given.digest and alone else None
    at_terminal = not flags.output and sys.stdout.isatty()
    no_bar = at_terminal or jax.process_index() != 0 or given.count is None
    with writing(flags.output, of) as out, run.placed():
        params, first = experiment.reduced(run.restore_params(step)), out.done
        texts = itertools.islice(given.texts(), first, None)
        # From a keyboard each text is answered before the next one is read.
        batches = ([text] for text in texts) if not flags.input and sys.stdin.isatty() else [texts]
        with tqdm(
            total=given.count, initial=first, desc="answering", unit=" texts", disable=no_bar, **BAR
        ) as progress:
            for index, batch in enumerate(batches):
                for answers in experiment.predict(params, batch, flags.seed + index, first):
                    out.write([one_line(answer) for answer in answers])
                    progress.update()


def answers_of(
    run: "Run", flags: argparse.Namespace, step: "Step", overrides: "Overrides", digest: str
) -> dict[str, Any]:
    """Identifies input, model and flags, so that an interrupted command can be continued."""
    checkpoints = [run.folder.checkpoints / str(each) for each in run.averaged_steps(step)]
    parameters = [[str(path.absolute()), path.stat().st_mtime_ns] for path in checkpoints]
    of = {"checkpoints": parameters, "input": digest, "seed": flags.seed, "keys": sorted(overrides)}
    return of | ({"draft": [flags.draft, flags.draft_tokens]} if flags.draft else {})


def print_pieces(pieces: Iterable[str]) -> None:
    """Prints pieces as they arrive."""
    for piece in pieces:
        print(piece, end="", flush=True)


def add_draft(experiment: Any, draft: str, draft_tokens: int) -> None:
    """Uses the model in the folder `draft` for speculative decoding.

    Raises:
      UserError: one of the two is not a language model, or the draft model does not fit (`use_draft`).
    """
    from workdir.opening import load

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
    from transformer.data.line_escapes import unescape

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
