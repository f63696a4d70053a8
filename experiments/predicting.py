"""--mode=predict and --mode=score: answers to texts, one a line."""

import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from tqdm import tqdm

from experiments.answers import one_line, writing
from experiments.config_files import of_decoding
from experiments.inputs import Input, check_output, open_input, texts_of
from experiments.modes import Overrides, chosen, load, named, reopen_run
from experiments.scoring import score_lines
from transformer.data.token_cache import BAR
from transformer.training.checkpoint import Step
from transformer.training.run import Run


def predict(
    workdir: str,
    overrides: Overrides = (),
    *,
    prompt: str | None = None,
    source: str | None = None,
    target: str | None = None,
    seed: int = 0,
    step: Step | None = None,
    decoding: Mapping[str, str | list[str]] = MappingProxyType({}),
) -> None:
    """Completes `prompt`; or, without one, answers each line of the file `source` (standard input), or each
    record of a source KIND:WHERE, with one line for each sample. Writes to the file `target` (standard
    output), and where that was interrupted, goes on behind what is there.

    `decoding` are flags that say how. A prompt's only answer appears at a terminal as it is written. In lines
    a line break of the answer is written \\n, and a backslash \\\\, so that they stay lines.
    """
    check_output(source, target)
    overrides = [*overrides, *of_decoding(named(workdir).read_config(), decoding)]
    run = reopen_run(workdir, overrides)
    experiment: Any = run.experiment
    given = open_input(prompt, source, experiment)
    step = chosen(run, workdir, step)
    steps = run.which(step)
    of = None
    if given.digest and jax.process_count() == 1:
        of = _identity(run, steps) | {"input": given.digest, "seed": seed, "keys": sorted(overrides)}
    waits = prompt is None and not source and sys.stdin.isatty()  # for each answer, before the next question
    shown = prompt is not None and not target and sys.stdout.isatty() and jax.process_count() == 1
    with writing(target, of) as out, _bar(given, out.done, bool(target)) as bar:
        params = run.restore_params(step)
        with run.placed():
            if shown and (pieces := experiment.stream(params, prompt, seed)) is not None:
                for piece in itertools.chain([prompt] * experiment.continues, pieces, ["\n"]):
                    print(piece, end="", flush=True)
                return
            texts = itertools.islice(given.texts(), out.done, None)
            first = out.done
            for index, batch in enumerate(([text] for text in texts) if waits else [texts]):
                for answers in experiment.predict(params, batch, seed + index, first):
                    if prompt is None:
                        out.write([one_line(answer) for answer in answers])
                    else:
                        out.write([prompt * experiment.continues + answer for answer in answers])
                    bar.update()


def score(
    workdir: str,
    overrides: Overrides = (),
    *,
    prompt: str | None = None,
    source: str | None = None,
    target: str | None = None,
    step: Step | None = None,
) -> None:
    """For `prompt`, or each line of the file `source` (standard input), which are TEXT, a tab, CONTINUATION,
    writes the continuation's log-likelihood to the file `target` (standard output): `experiments.scoring`."""
    check_output(source, target)
    texts = texts_of(prompt, source)
    texts = itertools.chain([next(texts)], texts)  # an empty file is no reason to load a model
    run, params = load(workdir, overrides, step)
    with run.placed(), writing(target) as out:
        for line in score_lines(run.experiment, params, texts):
            out.write([line])


def _identity(run: Run, steps: list[int]) -> dict[str, Any]:
    """What says which parameters answer: the folder, and its checkpoints as they are."""
    folders = [Path(run.workdir, "checkpoints", str(step)) for step in steps]
    return {"checkpoints": [[str(path.absolute()), os.stat(path).st_mtime_ns] for path in folders]}


def _bar(given: Input, done: int, to_file: bool) -> tqdm:
    """How many texts are answered; not between answers at a terminal."""
    hidden = jax.process_index() != 0 or given.count is None or not (to_file or not sys.stdout.isatty())
    return tqdm(total=given.count, initial=done, desc="answering", unit=" texts", disable=hidden, **BAR)
