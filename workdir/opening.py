"""Opens runs: a config file or a folder's config -> values -> checked config -> experiment -> `Run`."""

import ast
import contextlib
import copy
import dataclasses
import functools
import json
import os
import runpy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments import find_experiment
from transformer import ROOT
from transformer.config import from_values, refuse_idle
from transformer.data.overlap import check_overlap
from transformer.data.tokenization.tokenizers import TOKENIZERS, Tokenizer
from transformer.distributed import shared_errors
from transformer.errors import MeshError, UserError
from transformer.run_folder import RunFolder
from transformer.tracebacks import why_it_failed
from transformer.training.checkpoints.checkpoint import Step, split_step
from transformer.training.experiment import Params
from transformer.training.hooks import Hook
from transformer.training.run import Run
from transformer.training.run_config import ANOTHER
from workdir.compatibility import consistency, inheritance
from workdir.compatibility.retired_keys import keep_split
from workdir.folder import (
    check_resumable,
    check_same_data,
    check_stored_data,
    read_fork,
    read_lengths,
    steps_of,
    stored_config,
    stored_data,
)

OF_TRAINING = ("train.", "optimizer.", "initialize_")
OF_EVALUATION = tuple(
    f"train.{key}" for key in ("evaluate_batches", "average_last", "keep_last", "batch_size", "keep_best")
)
"""Prefixes of keys that concern training only, and exceptions that concern evaluation or the choice of a
checkpoint."""

_blank = functools.cache(Tokenizer.blank)

Overrides = Iterable[tuple[str, str]]
"""Config keys and their values as text: ("model.num_layers", "4")."""

Values = dict[str, Any]
"""The values of a config as nested dictionaries."""

ConfigSource = str | Mapping[str, Any]
"""A config file, "file.py" or "file.py:preset", or the values, such as a `ConfigDict`."""


def read_config(argument: ConfigSource, overrides: Overrides = ()) -> dict[str, Any]:
    """The values of a config as nested dictionaries, not yet checked. A file is searched in the current
    folder, then beside `launch.py`.

    Raises:
      UserError: no such file or preset, or the file fails.
    """
    if isinstance(argument, str):
        name, _, preset = argument.partition(":")
        values = call_in(name, "get_config", *([preset] if preset else []))
        if not isinstance(values, dict):
            raise UserError(f"{name}: get_config() should return a ConfigDict, not {type(values).__name__}")
    else:
        values = _plain(argument)
    if overrides:
        override(values, overrides)
    return values


def call_in(name: str, function: str, *arguments: Any) -> Any:
    """The value of a function of a config file.

    Raises:
      UserError: no such file or function, or it fails.
    """
    path = name if Path(name).is_file() else str(ROOT / name)
    if not Path(path).is_file():
        raise UserError(f"--config: there is no file {name!r}; configs/lm.py is an example")
    try:
        members = runpy.run_path(path)
        if function not in members:
            raise UserError(f"there is no {function}() in it")
        value = members[function](*arguments)
        return value.to_dict() if hasattr(value, "to_dict") else value
    except Exception as error:
        raise UserError(why_it_failed(path, error)) from None


def override(values: dict[str, Any], overrides: Iterable[tuple[str, str]]) -> None:
    """Sets each key, "model.num_layers", to its parsed value: text for a text key, a list for a list key
    (also from a single item), otherwise a Python or JSON literal. `from_values` reports unknown keys."""
    for key, text in overrides:
        *groups, name = key.split(".")
        group = values
        for part in groups:
            group = group.setdefault(part, {})
            if not isinstance(group, dict):
                raise UserError(f"config.{key}: {part!r} is a single value; it has no keys")
        group[name] = _parse(text, group.get(name))


def _parse(text: str, default: Any) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, list):
        value = _parse(text, None)
        single = value if isinstance(value, dict) else text
        return value if isinstance(value, (list, tuple)) else [single]
    parsed: Any = text
    for read in (json.loads, ast.literal_eval):  # as JSON writes it or, where both can read it, Python
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            parsed = read(text)
    whole = isinstance(default, int) and isinstance(parsed, float) and parsed.is_integer()
    return int(parsed) if whole else parsed


def _plain(value: Any) -> Any:
    """A copy of a mapping or `ConfigDict` as nested dictionaries."""
    return {key: _plain(item) for key, item in value.items()} if hasattr(value, "items") else value


def check_config(values: dict[str, Any], overrides: Overrides = ()) -> Any:
    """The checked, frozen config of the experiment that the key `experiment` names."""
    if overrides:
        override(values, overrides)
    return from_values(find_experiment(values.get("experiment")).Config, values)


def read_to_train(config: ConfigSource, overrides: Overrides = (), folder: RunFolder | None = None) -> Values:
    """`read_config`, with what `inherit` takes of the run that `initialize_from` names or, once started, of
    the folder's own; `check_config` with the overrides lets these win over it."""
    values = read_config(config, overrides)
    needed = values.get("initialize_from") or (folder and steps_of(folder))
    return inherit(values, folder, overrides) if needed else values


def inherit(values: Values, folder: RunFolder | None, overrides: Overrides = ()) -> Values:
    """The values with an inherited architecture (see `read_to_train`), the keys of `WRITTEN_BY`,
    and the splits of a started run.

    Raises:
      UserError: there is no such run; or an override of the tokenizer, which is inherited too.
    """
    stored = stored_config(folder) if folder and steps_of(folder) else {}
    keep_split(values, stored)
    if isinstance(values.get("model"), dict) and values.get("initialize_from"):
        theirs = stored or inheritance.origin_values(values["initialize_from"])
        if not stored:
            inheritance.check_tokenizer(overrides, values, theirs)
        values["model"] |= inheritance.inherited(values, theirs)
        for group, keys in inheritance.WRITTEN_BY.items():
            there, here = theirs.get(group) or {}, values.get(group) or {}
            here |= {key: there[key] for key in keys if key in here and there.get(key)}
    return values


def open_to_train(
    folder: RunFolder, overrides: Overrides, config: ConfigSource, accept_data: bool, hooks: Sequence[Hook]
) -> Run:
    """The run of a config, by default the folder's own, to train in the folder. Nothing is written before all
    checks have passed, on all processes.

    Raises:
      UserError: an impossible config; a folder with another run, other data (unless `accept_data`), or more
        steps than the config; processes with other configs or data; a new run validated on training data.
    """
    with shared_errors():
        trained = steps_of(folder)
        frozen = check_config(read_to_train(config or stored_config(folder), overrides, folder), overrides)
        if folder.path.exists():
            check_resumable(folder, frozen)
        if not trained:
            refuse_idle(frozen)
    if jax.process_count() > 1:
        consistency.check_config(frozen)
    with shared_errors():
        run = open_run(folder, frozen, extra_hooks=hooks)
        run = resumed(run, folder, accept_data) if trained else run
        run.prepare()
        if not (trained or run.experiment.data.apart):  # type: ignore[attr-defined]
            check_overlap(run.experiment.data)  # type: ignore[attr-defined]
    if jax.process_count() > 1:
        consistency.check_data(run.experiment.data, frozen.evaluate.sets)  # type: ignore[attr-defined]
    return run


def resumed(run: Run, folder: RunFolder, accept_data: bool) -> Run:
    """The run with the lengths that its folder had before, and with what a fork continues; checks that the
    data are the same, unless `accept_data`."""
    if not accept_data:  # by all processes: a reference model is part of the data
        check_same_data(folder, run.experiment.data)  # type: ignore[attr-defined]
    run = dataclasses.replace(run, lengths=read_lengths(folder, run.config.train.steps))
    if not folder.fork.exists():
        return run
    from transformer.training.checkpoints.fork import forked

    return forked(run, read_fork(folder))


def open_run(folder: RunFolder, config: Any, devices: Sequence[jax.Device] | None = None, **more: Any) -> Run:
    """The run of a config, with the folder's tokenizer and labels if it has them, otherwise with the
    tokenizer of the run that `initialize_from` names; `devices` and `more` are those of `Run`."""
    stored, source = stored_data(folder), config.initialize_from
    if source:
        stored = with_tokenizer(stored, source, None if steps_of(folder) else inheritance.find_hub(source))
    experiment = find_experiment(config.experiment)(config, **stored)
    experiment.origin = inheritance.find_origin
    return Run(experiment, config, folder.path, devices=devices, **more)


def with_tokenizer(stored: Mapping[str, Any], source: str, hub: Any) -> dict[str, Any]:
    """`stored`, with the tokenizer of the run `source`, or of the `Hub` that it names, if it has none."""
    theirs = {} if "tokenizer" in stored else hub.stored if hub else stored_data(named(source))
    return {**stored, **{name: value for name, value in theirs.items() if name == "tokenizer"}}


def named(run: str | os.PathLike) -> RunFolder:
    """The folder in "runs/lm", or in "runs/lm@200", which names a checkpoint."""
    return RunFolder(run if (parts := split_step(run))[1] is None else parts[0])


def open_without_data(
    values: dict[str, Any],
    overrides: Overrides,
    stored: Mapping[str, Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Run:
    """A run that is not trained, on `devices`, with the `stored` tokenizer and labels, or the tokenizer of
    the run that `initialize_from` names. Where one would be learnt, a blank one of `data.vocab_size` tokens
    stands for it, if the shapes of batches are known without data."""
    config = check_config(copy.deepcopy(values), overrides)
    make, source = find_experiment(config.experiment), config.initialize_from
    if source:
        stored = with_tokenizer(stored or {}, source, inheritance.find_hub(source))
    kind = TOKENIZERS.get(vars(config.data).get("tokenizer"))
    if not stored and kind and kind.learns and kind.least_size:
        experiment = make(config, tokenizer=_blank(config.data.vocab_size))
        if experiment.data.blank() is not None:
            return Run(experiment, config, "", devices=devices)
    return Run(make(config, **(stored or {})), config, "", devices=devices)


def reopen_run(workdir: str | os.PathLike, overrides: Overrides = ()) -> Run:
    """The run in a folder, on the devices that are here: where the mesh that it was trained on does not fit
    them, and no other is given, on `devices_here.nearest`.

    Raises:
      UserError: no run, no checkpoint, a lost tokenizer, or an override of a key of training alone.
    """
    values = stored_config(folder := named(workdir))
    if not steps_of(folder):
        raise UserError(f"--workdir: {folder.path} has no checkpoints yet; train first")
    config = _with_overrides(folder, overrides) if overrides else check_config(values)
    try:
        run = open_run(folder, config)
    except MeshError as error:
        from workdir.compatibility import devices_here

        run = open_run(folder, *devices_here.nearest(config, overrides, error))
    check_stored_data(folder, run.experiment.data)  # type: ignore[attr-defined]
    return run


def _with_overrides(folder: RunFolder, overrides: Overrides) -> Any:
    """The config of a trained run with overrides. Raises `UserError` for a key of training alone."""
    for key, _ in overrides:
        if key.startswith(OF_TRAINING) and key not in OF_EVALUATION:
            raise UserError(f"--config.{key}: it concerns training, and does not change a trained model")
    return overridden(folder, overrides)[1]


def overridden(folder: RunFolder, overrides: Overrides) -> tuple[Any, Any]:
    """The config of a run, and the same with overrides.

    Raises:
      UserError: an impossible config, or one with which the parameters of the run compute another function
        by more than the overridden keys of `model`.
    """
    values = stored_config(folder)
    before, now = check_config(values), check_config(copy.deepcopy(values), overrides)
    if inheritance.implied(now, before, overrides):
        now = check_config(inheritance.settled(values, before), overrides)
    for key in inheritance.implied(now, before, overrides):
        raise UserError(f"--workdir: {folder.path}: {key}, {ANOTHER}")
    return before, now


def chosen(run: Run, workdir: str | os.PathLike, step: Step | None = None) -> Step:
    """The checkpoint to use: `step`, or the one in `workdir`, "runs/lm@200", or the best one if the run keeps
    it, or the latest.

    Raises:
      UserError: `step` and `workdir` name different ones.
    """
    in_name = split_step(workdir)[1]
    if step is not None and in_name not in (None, step):
        raise UserError(f"--step: {step}, but --workdir names {in_name}; give one of them")
    step = in_name if step is None else step
    return step if step is not None else "best" if run.config.train.keep_best else "latest"


def load(
    workdir: str | os.PathLike, overrides: Overrides = (), step: Step | None = None
) -> tuple[Run, Params]:
    """The run in a folder and its parameters in the checkpoint by `chosen`. Raises as `reopen_run`."""
    run = reopen_run(workdir, overrides)
    return run, run.restore_params(chosen(run, workdir, step))
