"""Scores continuations: log-likelihood, number of tokens, and whether greedy decoding would produce them.

python launch.py --workdir=runs/lm --mode=score --input=pairs.tsv
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from commands import add_step, add_texts
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.training.experiment import Params
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    add_texts(parser, "TEXT, a tab, CONTINUATION")
    add_step(parser)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Writes a line of scores for --prompt, or each line of --input: TEXT, a tab, CONTINUATION."""
    from commands.support.answer_files import writing
    from commands.support.texts import check_files, texts_of
    from workdir.opening import load

    check_files(flags.prompt, flags.input, flags.output)
    texts = texts_of(flags.prompt, flags.input)
    texts = itertools.chain([next(texts)], texts)  # raises on an empty file before a model is loaded
    run, params = load(flags.workdir, overrides, flags.step)
    with run.placed(), writing(flags.output) as out:
        where = f"--input: {flags.input or 'standard input'}" if flags.prompt is None else "--prompt"
        for line in score_lines(run.experiment, params, texts, where):
            out.write([line])
    return 0


def score_lines(
    experiment: Any, params: "Params", lines: Iterable[str], where: str = "--input"
) -> Iterator[str]:
    """For each line TEXT, a tab, CONTINUATION (with the escapes of `escape`: \\n, \\r, \\t, \\\\) one line,
    tab-separated: the log-likelihood, the number of tokens, and true or false for greedy.

    Raises:
      UserError: an experiment without likelihoods, a line in another format, or a continuation that cannot be
        scored; `where` says in the message where the lines are from.
    """
    import jax

    from transformer.data.line_escapes import unescape

    if experiment.row is None:
        name = experiment.config.experiment
        raise UserError(f"--mode=score: a run of {name} has no likelihood of a continuation")

    def pairs() -> Iterator[tuple[str, str]]:
        for number, line in enumerate(lines, 1):
            text, tab, continuation = line.partition("\t")
            if not tab or "\t" in continuation:
                raise UserError(
                    f"pair {number}: {line.count(chr(9))} tabs in its line; expected TEXT, a tab, "
                    "CONTINUATION (\\t is a tab within one of them)"
                )
            yield unescape(text), unescape(continuation)

    cut = 0
    try:
        for score in experiment.score(params, pairs()):
            cut += score.unread > 0
            yield f"{score.log_likelihood:.6f}\t{score.tokens}\t{str(score.greedy).lower()}"
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if cut and jax.process_index() == 0:
        print(f"{cut} texts are longer than the model's context: they are truncated", file=sys.stderr)
