"""Evaluates a trained model, and stores the results with the run.

python launch.py --workdir=runs/lm --mode=evaluate --split=test
"""

import argparse
import contextlib
import datetime
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from commands import add_step, place
from transformer.data.cache.disk_cache import data_folder, digest, locked
from transformer.errors import UserError
from transformer.visualization.evaluations import read_evaluations
from workdir.outputs import check_file

if TYPE_CHECKING:
    from transformer.run_folder import RunFolder
    from transformer.training.checkpoints.checkpoint import Step
    from transformer.training.experiment import Params
    from transformer.training.run import Run
    from workdir.opening import Overrides

SHOWN_CHARACTERS = 200
"""The number of characters of a document that are shown beside its loss."""

LIMITS = ("train.evaluate_batches", "generate.examples", "answer.examples")
"""Keys that limit evaluation during training. Here they are 0, no limit, unless given as flags."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    add = parser.add_argument
    add(
        "--split",
        choices=["train", "validation", "test"],
        default="validation",
        help="the split to evaluate (validation)",
    )
    add("--input", type=place, help="other data: a file, or KIND:WHERE as in the key data.source")
    add("--output", type=place, help="a file for a classifier's predictions")
    add(
        "--per_document",
        type=place,
        help="a file for the loss of each document, the highest first, as JSON lines",
    )
    add_step(parser)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Evaluates; the exit code."""
    evaluate(
        flags.workdir,
        overrides,
        split=flags.split,
        source=flags.input,
        target=flags.output,
        step=flags.step,
        per_document=flags.per_document,
    )
    return 0


def evaluate(
    workdir: str,
    overrides: "Overrides" = (),
    *,
    split: str = "validation",
    source: str | None = None,
    target: str | None = None,
    step: "Step | None" = None,
    per_document: str | None = None,
) -> None:
    """Evaluates a whole split, or `source` (a file, or KIND:WHERE as in a config), with every evaluator of
    the run. Prints one result per line with the evaluator's description, and stores the same in
    evaluation.json. A classifier writes its predictions to `target`; the losses of all documents are
    written to `per_document`."""
    import jax

    from commands.support.answer_files import writing
    from commands.support.columns import as_source
    from commands.support.texts import check_files
    from experiments.evaluation.mean_reward import Sampling
    from transformer.config import flatten
    from transformer.data.division import tally_lines
    from transformer.run_folder import check_run_file
    from transformer.training.hooks import described, results
    from workdir.folder import stored_config
    from workdir.opening import chosen, named, reopen_run

    folder, changes = named(workdir), list(overrides)
    check_file("--per_document", per_document)
    keys, stored = {key for key, _ in changes}, flatten(stored_config(folder))
    check_run_file(folder.evaluation)
    read_evaluations(folder.evaluation)  # raises on a damaged file before anything is evaluated
    whole = [(key, "0") for key in LIMITS if key in stored and key not in keys]
    run = reopen_run(workdir, [*changes, *whole])
    predictions = run.experiment.predictions  # type: ignore[attr-defined]
    if target and predictions is None:
        raise UserError(f"--output: {run.config.experiment} has no labels; --mode=predict writes its answers")
    step = chosen(run, workdir, step)
    data: Any = run.experiment.data  # type: ignore[attr-defined]
    name = split if source is None else f"{split} of {as_source(source, data)}"
    check_files(None, data.location(name).partition(":")[2], target)
    steps = run.averaged_steps(step)
    params = run.restore_params(step)
    with run.placed(), writing(target) if target else contextlib.nullcontext() as out:
        evaluators = run.evaluators(name)
        sampling = [key for key in keys if key.startswith("sample.")]
        if sampling and not any(isinstance(evaluator, Sampling) for evaluator in evaluators.values()):
            raise UserError(f"--config.{sampling[0]}: no evaluator of this run samples; see evaluate.also")
        measured: dict[str, dict[str, float]] = {}
        about: dict[str, dict[str, str]] = {}
        for prefix, evaluator in evaluators.items():
            measured[prefix] = results(prefix, evaluator, params)
            about[prefix] = {f"{prefix}/{key}": text for key, text in described(evaluator).items()}
        if out and predictions:
            for line in predictions(params, name):
                out.write([line])
        highest = _write_documents(per_document, run, params, name) if per_document else ""
    if jax.process_index() != 0:
        return
    of = data.location(name)
    part = "the whole" if source is not None and not _has_splits(of) else f"{split} split"
    print(f"{folder.path}, {_checkpoint(run, step, steps)}: {part} of {of}")
    for line in tally_lines(data.tallies(name)):
        print(line)
    for prefix in evaluators:
        description, count = about[prefix], f"{prefix}/measured"
        if count in description:
            print(f"{prefix}: {description[count]}")
        for key, value in measured[prefix].items():
            more = f"  {description[key]}" if key in description else ""
            print(f"{key} {'none' if math.isnan(value) else f'{value:.6g}'}{more}")
        for key, text in description.items():
            if key != count and key not in measured[prefix]:
                print(f"{key}:\n{text}" if "\n" in text else f"{key}: {text}")
    if highest:
        print(highest)
    _keep(
        folder,
        {"steps": steps, "split": split, "source": of, "keys": dict(changes)},
        {
            "results": {
                key: value if math.isfinite(value) else None
                for metrics in measured.values()
                for key, value in metrics.items()
            },
            "about": {key: text for texts in about.values() for key, text in texts.items()},
        },
    )


def _write_documents(target: str, run: "Run", params: "Params", split: str) -> str:
    """Writes the loss of each document of a split, the highest first. Returns a line on them."""
    from commands.support.answer_files import writing
    from transformer.data.sources.base import Source
    from transformer.evaluation.documents import document_losses

    data: Any = run.experiment.data  # type: ignore[attr-defined]
    loader = run.experiment.loader(split)
    parts = loader.parts or {"": loader}
    entries = []
    for name, part in (data.parts(split) if "" not in parts else {"": data}).items():
        (source, *_) = part.sources(split)
        losses = document_losses(run.experiment, params, run.put, parts[name])
        losses = sorted(losses, key=lambda document: document.number)
        for document in losses:  # a source is read in its own order
            about = {
                "document": document.number + 1,
                "place": source.place(document.number),
                "loss": document.loss,
            }
            about |= {"targets": document.targets, "bits_per_byte": document.bits_per_byte}
            about |= {"source": name} if name else {}
            if isinstance(source, Source):
                about["text"] = source.text(document.number)[:SHOWN_CHARACTERS]
            entries.append(about)
    entries.sort(key=lambda about: -about["loss"])
    with writing(target, flag="--per_document") as out:
        out.write([json.dumps(about, ensure_ascii=False) for about in entries])
    highest = f"{entries[0]['loss']:.6g} of {entries[0]['place']}"
    return f"{target}: the loss of {len(entries):,} documents; the highest is {highest}"


def _has_splits(source: str) -> bool:
    return source.partition(":")[0] == "tfds"


def _checkpoint(run: "Run", step: "Step", steps: list[int]) -> str:
    if len(steps) > 1:
        return f"the mean of steps {', '.join(map(str, steps))}"
    why = {"latest": " (the latest)", "best": f" (the best by {run.config.train.keep_best})"}
    return f"step {steps[0]}{why.get(str(step), '')}"


def _keep(folder: "RunFolder", subject: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Adds an evaluation to evaluation.json, or replaces an earlier one of the same checkpoint and data."""
    from workdir.folder import write_json

    path = folder.evaluation
    entry = {**subject, "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), **results}
    with locked(data_folder() / "evaluations" / digest(str(path.absolute()))):
        there = [
            earlier
            for earlier in read_evaluations(path)
            if any(earlier.get(key) != subject[key] for key in subject)
        ]
        try:
            write_json(path, [*there, entry], indent=2)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
