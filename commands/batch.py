"""Prints what a step of training reads, as JSON lines: one for each document of each row.

python launch.py --workdir=runs/lm --mode=batch --step=100
python launch.py --workdir=runs/finetune_chat --mode=batch --step=1 --learned

With --learned the documents as text, in which tokens to learn are green at a terminal, else in ⟦ and ⟧ with a
point between two tokens.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from commands import place
from transformer.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from workdir.opening import Overrides

TEXTS = {"source": "source_segments", "tokens": "segments"}
"""Array of tokens -> array of the numbers, from 1, of their documents in the row; 0 for padding."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(alone=True)
    parser.add_argument("--step", type=int, help="the step, as in metrics.jsonl: 1 is the first")
    parser.add_argument("--accept_data", action="store_true", help="read data that have changed since")
    parser.add_argument("--learned", action="store_true", help="as text, with the tokens to learn marked")
    parser.add_argument("--output", type=place, help="a file for the lines (standard output)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the documents of the batch of a step."""
    from commands.support.answer_files import writing
    from commands.support.texts import check_files
    from workdir.folder import read_fork
    from workdir.opening import named, reopen_run, resumed

    if flags.step is None or flags.step < 1:
        step = "which one?" if flags.step is None else flags.step
        raise UserError(f"--step: {step}; expected 1 or more (--mode=batch)")
    check_files(None, None, flags.output)
    folder = named(flags.workdir)
    run = resumed(reopen_run(flags.workdir, overrides), folder, flags.accept_data)
    if folder.fork.exists() and flags.step <= (first := read_fork(folder)["step"]):
        raise UserError(f"--step: {flags.step}; {folder.path} is a fork that starts after step {first}")
    experiment: Any = run.experiment
    loader: Any = run.loader
    numbers = loader.documents_at(flags.step - 1)
    place = None if numbers is None else experiment.data.sources("train")[0].place
    batch = next(iter(loader.iterate(flags.step - 1)))
    with writing(flags.output) as out:
        if flags.learned:
            for text in learned_texts(batch, experiment.data.tokenizer, numbers, place, flags.output):
                out.write([text])
            return 0
        for entry in documents(batch, experiment.data.tokenizer, numbers):
            if place is not None and "document" in entry:
                entry["place"] = place(entry["document"] - 1)
            out.write([json.dumps(entry, ensure_ascii=False)])
    return 0


def learned_texts(
    batch: dict[str, "np.ndarray"], tokenizer: Any, numbers: Any, place: Any, output: str | None
) -> Iterator[str]:
    """For each document a line that says where it is and how much of it is learned, and its marked text."""
    from commands.support.learned_tokens import marked_documents

    colours = not output and sys.stdout.isatty()
    for row, number, counts, text in marked_documents(batch, tokenizer, colours):
        known = numbers is not None and len(numbers[row])
        where = f", {place(int(numbers[row][number - 1]))}" if known else ""
        yield f"row {row}{where}: {counts}\n{text}\n"


def documents(
    batch: dict[str, "np.ndarray"], tokenizer: Any, numbers: "Sequence[np.ndarray] | None" = None
) -> Iterator[dict[str, Any]]:
    """For each document of each row its row, the row's single numbers, and the text, or without a tokenizer
    the tokens; a row without tokens is one document. `numbers` are those of `DataLoader.documents_at`, from
    0; they are shown from 1."""
    texts = {name: segments for name, segments in TEXTS.items() if name in batch and segments in batch}
    single = {name: values for name, values in batch.items() if values.ndim == 1}
    for row in range(len(next(iter(batch.values())))):
        alone = {"row": row} | {name: values[row].item() for name, values in single.items()}
        here = {number for key in texts.values() for number in batch[key][row].tolist() if number}
        for number in sorted(here) if texts else [0]:
            entry: dict[str, Any] = {}
            for name, segments in texts.items():
                tokens = batch[name][row][batch[segments][row] == number].tolist()
                own = tokenizer if tokenizer is None or name == "source" else tokenizer.targets
                entry[name] = tokens if own is None else own.decode(tokens)
            if numbers is not None and len(numbers[row]):
                entry = {"document": int(numbers[row][max(number - 1, 0)]) + 1} | entry
            yield alone | entry
