"""The folder of a fork: which keys may change, what continues, and how the folder is made at once."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from transformer.config import flatten, refuse_idle, to_values
from transformer.distributed import shared_errors
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.checkpoints.checkpoint import Checkpoints, Step, split_step
from transformer.training.checkpoints.fork import Fork, earlier_rate
from transformer.training.optim.optimizer import make_schedule
from transformer.training.run import Run
from workdir.compatibility.differences import FREE, LOCATIONS, kind_of
from workdir.compatibility.inheritance import TOKENIZER
from workdir.folder import (
    changed_data,
    check_same_data,
    read_fork,
    read_lengths,
    steps_of,
    write_json,
    write_start,
)
from workdir.lock import exclusive
from workdir.opening import Overrides, open_run, overridden
from workdir.outputs import rename

SCHEDULE = {
    "train.steps",
    "optimizer.learning_rate",
    "optimizer.schedule",
    "optimizer.warmup_steps",
    "optimizer.decay_steps",
    "optimizer.final_fraction",
}
"""Keys of the learning rate as a function of the step."""

NAMES = {
    "params": "parameters",
    "opt_state": "optimizer state",
    "ema": "average of parameters",
    "carry": "carry",
    "data": "data",
}
"""The parts of a training state that continue or are reset, in words."""


def make_fork(
    workdir: str,
    at_step: Step | None,
    to: str,
    overrides: Overrides,
    fresh_optimizer: bool,
    accept_data: bool,
) -> None:
    """Makes the folder `to` of a fork with its first checkpoint, unless the same command has made it.

    It is renamed into place when it is complete.

    Raises:
      UserError: no such checkpoint; keys with which it cannot continue; or `to` has something else. Then
        nothing is written.
    """
    with shared_errors():
        source, step = _source(workdir, at_step)
        folder = RunFolder(to)
        request = {
            "from": str(source.path.resolve()),
            "given": dict(overrides),
            "fresh_optimizer": fresh_optimizer,
        }
        if _is_there(folder, source):
            return _check_same(folder, request, step)
        run, fork, record, lengths = _plan(source, step, request, accept_data)
        state = fork.state(run)
    place, first, c = Path(os.path.abspath(to)), jax.process_index() == 0, run.config.train
    part = place.with_name(f"{place.name}.part")
    target = RunFolder(part / "run")
    with exclusive(part / "lock"):
        with shared_errors():
            if first:
                shutil.rmtree(target.path, ignore_errors=True)  # what a killed command left
                write_start(target, run.config, run.experiment.data)  # type: ignore[attr-defined]
                write_json(target.fork, record, indent=1)
                if lengths:
                    write_json(target.lengths, lengths)
        with Checkpoints(target.checkpoints, keep_last=c.keep_last, keep_best=c.keep_best) as checkpoints:
            checkpoints.save(fork.step, state)
        with shared_errors():
            if first:
                rename("--to", target.path, place)
    if first:
        with contextlib.suppress(OSError):  # another command waits for the lock in it
            part.rmdir()
        print(f"{to}: a fork {_told(record)}", *_lines(fork, record), sep="\n", flush=True)


def _source(workdir: str, at_step: Step | None) -> tuple[RunFolder, Step]:
    """The run to branch off, and its checkpoint."""
    path, in_name = split_step(workdir)
    if in_name is not None and at_step not in (None, in_name):
        raise UserError(f"--at_step: {at_step}, but --workdir names {in_name}; give one of them")
    step = at_step if in_name is None else in_name
    return RunFolder(path), "latest" if step is None else step


def _is_there(folder: RunFolder, source: RunFolder) -> bool:
    """Whether the folder has a fork.

    Raises:
      UserError: it cannot be the folder of a fork of `source`.
    """
    new, old = folder.path.resolve(), source.path.resolve()
    if new == old or old in new.parents:
        where = "is the run itself" if new == old else f"is inside {source.path}"
        raise UserError(f"--to: {folder.path} {where}; choose another folder")
    if folder.fork.is_file():
        return True
    if not folder.path.exists() or (folder.path.is_dir() and not any(folder.path.iterdir())):
        return False
    raise UserError(f"--to: {folder.path} exists and is not a fork; choose another folder")


def _check_same(folder: RunFolder, request: dict[str, Any], step: Step) -> None:
    """Raises `UserError` if the folder was made by another command."""
    record = read_fork(folder)
    same_step = step in (record["step"], "best", "latest")
    if not same_step or any(record.get(name) != value for name, value in request.items()):
        raise UserError(
            f"--to: {folder.path} is another fork, {_told(record)}; choose another folder, or resume that "
            f"one with --workdir={folder.path}"
        )


def _plan(
    source: RunFolder, step: Step, request: dict[str, Any], accept_data: bool
) -> tuple[Run, Fork, dict[str, Any], list[tuple[int, int]]]:
    """The run of a fork, what continues in it, and the contents of fork.json and lengths.json."""
    before, config, changed = _configs(source, request["given"])
    at = Checkpoints(source.checkpoints, keep_best=before.train.keep_best, write=False).find(step)
    if config.train.steps <= at:
        raise UserError(f"config.train.steps: {config.train.steps}; a fork of step {at} needs more")
    run = open_run(source, config)
    run.prepare()
    if config.train.until:
        run.stages.check(at)
    theirs = read_fork(source)
    sizes = before.train.batch_size, config.train.batch_size
    order = _other_order(source, run, changed, accept_data)
    row = 0 if order else _row(before, theirs, at)
    fork = Fork.plan(
        run,
        source.path,
        at,
        optimizer=_why_fresh(run, before.optimizer, request["fresh_optimizer"]),
        carry=order or ("train.batch_size is another" if sizes[0] != sizes[1] else ""),
    )
    rate, lengths = _rate(source, before, theirs, at, changed, request["fresh_optimizer"])
    record = request | {
        "step": at,
        "changed": changed,
        "anew": fork.reset | ({"data": order} if order else {}),
    }
    # Of a batch of other rows that were read in part, none is read again.
    place = {"row": row} if config.train.until else {"batch": -(-row // sizes[1])}
    return run, fork, record | place | {"rate": rate}, lengths


def _row(config: Any, theirs: dict[str, Any], at: int) -> int:
    """The place, after `at` steps, in the order of the rows of a run, which may be a fork with the record
    `theirs`."""
    if not theirs:
        return _rows_before(config, at)
    row = theirs["row"] if "row" in theirs else theirs["batch"] * config.train.batch_size
    return row + _rows_before(config, at) - _rows_before(config, theirs["step"])


def _rows_before(config: Any, step: int) -> int:
    if not config.train.until:
        return step * config.train.batch_size
    from transformer.training.extras.stage_config import rows_before

    return rows_before(config, step)


def _configs(source: RunFolder, overrides: dict[str, str]) -> tuple[Any, Any, dict[str, list]]:
    """The config of a run, that of its fork, and key -> [before, now] of those that differ.

    Raises:
      UserError: an impossible config, or a key that a fork cannot change.
    """
    before, config = overridden(source, overrides.items())
    if not steps_of(source):
        raise UserError(f"--workdir: {source.path} has no checkpoints yet; train first")
    old, new = flatten(to_values(before)), flatten(to_values(config))
    changed = {key: [old.get(key), new.get(key)] for key in old | new if old.get(key) != new.get(key)}
    for key in changed:
        if key in TOKENIZER or key.startswith("initialize_"):
            part = "tokenizer" if key in TOKENIZER else "parameters"
            raise UserError(
                f"config.{key}: {new[key]!r}, but a fork has the {part} of {source.path}; leave it out"
            )
    refuse_idle(config)
    return before, config, changed


def _other_order(source: RunFolder, run: Run, changed: dict[str, list], accept_data: bool) -> str:
    """Why the training rows are others than those of the run before, or in another order; "" if they are the
    same.

    Raises:
      UserError: data have changed although no key did, unless `accept_data`.
    """
    data = run.experiment.data  # type: ignore[attr-defined]
    if not (accept_data or changed.keys() & set(LOCATIONS)):
        check_same_data(source, data)
    for key, (stored, new) in changed.items():
        if _reorders(key, stored, new):
            return f"{key} is another"
    listed = changed_data(source, data, but="validation_source")
    if "data.source" in changed and (listed or not source.data.exists()):
        return "data.source is another"
    return listed


def _reorders(key: str, stored: Any, new: Any) -> bool:
    """Whether a change of a key changes which rows are trained on, whatever the data are."""
    if key == "data.source":
        return kind_of(stored) != kind_of(new)
    if key == "data.validation_source":  # without one, a part of the other source is not trained on
        return not (stored and new)
    return key == "seed" or (key.startswith("data.") and not key.startswith(FREE))


def _why_fresh(run: Run, before: Any, fresh: bool) -> str:
    """Why the optimizer's state is reset; "" if it continues.

    Raises:
      UserError: it cannot continue, and `fresh_optimizer` was not given.
    """
    kinds = [[c.name, *(rule.optimizer for rule in c.rules)] for c in (before, run.config.optimizer)]
    stored, new = (" and ".join(dict.fromkeys(filter(None, names))) for names in kinds)
    if not fresh and stored != new:
        raise UserError(
            f"config.optimizer: {new} cannot continue from the state of {stored}; --fresh_optimizer resets it"
        )
    return "--fresh_optimizer" if fresh else ""


def _rate(
    source: RunFolder, before: Any, theirs: dict[str, Any], at: int, changed: dict[str, list], fresh: bool
) -> tuple[list, list[tuple[int, int]]]:
    """[step, learning rate before it], if the rate continues from there by another schedule, and otherwise
    that of the run before, or []; and the content of lengths.json."""
    lengths = read_lengths(source, before.train.steps)
    if fresh:
        return [at, 0.0], []
    if not changed.keys() & SCHEDULE:
        return theirs.get("rate", []), lengths
    planned: list[tuple[int, Any]] = [*earlier_rate(theirs, before.optimizer), *lengths]
    return [at, float(make_schedule(before.optimizer, before.train.steps, planned)(at - 1))], []


def _told(record: dict[str, Any]) -> str:
    changes = [f"{key} {before!r} -> {now!r}" for key, (before, now) in record.get("changed", {}).items()]
    return f"of {record.get('from')}, step {record['step']}: {', '.join(changes) or 'nothing changed'}"


def _lines(fork: Fork, record: dict[str, Any]) -> Iterator[str]:
    """The lines on what continues and what is reset."""
    continuing = [NAMES[name] for name in fork.continues if name in NAMES]
    if "data" not in record["anew"]:
        unit = "row" if "row" in record else "batch"
        continuing.append(f"data from {unit} {record[unit]}")
    yield f"  continues: {', '.join(continuing)}"
    yield from (f"  reset: {NAMES[name]} ({why})" for name, why in record["anew"].items())
    if record["rate"]:
        _, rate = record["rate"]
        yield f"  the learning rate {f'continues from {rate:.3g}' if rate else 'rises from 0'}"
