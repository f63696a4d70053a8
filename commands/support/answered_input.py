"""Answers to the texts of an input, one line each."""

import argparse
import itertools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.training.checkpoints.checkpoint import Step
    from transformer.training.run import Run
    from workdir.opening import Overrides


def answer_input(run: "Run", flags: argparse.Namespace, overrides: "Overrides") -> None:
    """Writes the answers to the texts of --input, one per line, after those of an interrupted command."""
    import jax
    from tqdm import tqdm

    from commands.support.answer_files import writing
    from commands.support.texts import one_line, open_input
    from transformer.data.cache.token_cache import BAR
    from workdir.opening import chosen

    experiment: Any = run.experiment
    opened = open_input(flags.input, experiment)
    step = chosen(run, flags.workdir, flags.step)
    alone = jax.process_count() == 1
    source = answers_of(run, flags, step, overrides, opened.digest) if opened.digest and alone else None
    at_terminal = not flags.output and sys.stdout.isatty()
    no_bar = at_terminal or jax.process_index() != 0 or opened.count is None
    with writing(flags.output, source=source) as out, run.placed():
        params, first = experiment.reduced(run.restore_params(step)), out.done
        texts = itertools.islice(opened.texts(), first, None)
        # From a keyboard each text is answered before the next one is read.
        batches = ([text] for text in texts) if not flags.input and sys.stdin.isatty() else [texts]
        with tqdm(
            total=opened.count, initial=first, desc="answering", unit=" texts", disable=no_bar, **BAR
        ) as progress:
            for index, batch in enumerate(batches):
                for answers in experiment.predict(params, batch, flags.seed + index, first):
                    out.write([one_line(answer) for answer in answers])
                    progress.update()


def answers_of(
    run: "Run", flags: argparse.Namespace, step: "Step", overrides: "Overrides", digest: str
) -> dict[str, Any]:
    """Identifies input, model and flags, so that an interrupted command can be continued."""
    checkpoints = [run.folder.checkpoints / str(number) for number in run.averaged_steps(step)]
    parameters = [[str(path.absolute()), path.stat().st_mtime_ns] for path in checkpoints]
    of = {"checkpoints": parameters, "input": digest, "seed": flags.seed, "keys": sorted(overrides)}
    return of | ({"draft": [flags.draft, flags.draft_tokens]} if flags.draft else {})
