"""What can be done with a run: train it, open it again, look into it."""

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import jax

from experiments import embeddings, find_experiment
from experiments.closing import closing, command
from experiments.config_files import ConfigSource, override, read_config
from experiments.lock import exclusive, together
from experiments.output import lasting
from experiments.workdir import Workdir, describe
from transformer.errors import UserError
from transformer.freeze import freeze, refuse_idle
from transformer.training.checkpoint import Step, split_step
from transformer.training.experiment import Params
from transformer.training.run import Run

DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout")
OWN = (*DROPOUTS, "dtype", "kernel", "scan_layers", "remat", "lora_rank", "lora_alpha")
"""Keys of a model that say how it is trained and computed, and not what it is."""

OVER = ("train.", "optimizer.", "initialize_")
STILL = (
    "train.evaluate_batches",
    "train.average_last",
    "train.keep_last",
    "train.batch_size",
    "train.keep_best",
)
"""Beginnings of keys that are for training alone, and those among them that say how a trained model is
measured or chosen."""

Overrides = Iterable[tuple[str, str]]
"""Keys of the config and what to set them to, as text: ("model.num_layers", "4")."""


def train(
    workdir: str,
    overrides: Overrides = (),
    config: ConfigSource = "",
    started: float | None = None,
    accept_data: bool = False,
) -> str:
    """Trains from the beginning, or from the latest checkpoint in the folder, and says what there is now.
    Returns why training ended: "finished", or the name of a signal.

    `config` is a config file, or what its `get_config` gives; without it the folder's own config goes on.
    Data that have changed since the run began are refused, unless `accept_data`. Whoever reads what is said
    may leave: training goes on.
    """
    if split_step(workdir)[1] is not None:
        raise UserError(
            f"--workdir: {workdir} names a checkpoint; begin another run with it: initialize_from"
        )
    folder = Workdir(workdir)
    with lasting(), contextlib.ExitStack() as stack:
        known = folder.config.is_file()
        if known:
            stack.enter_context(exclusive(folder.lock))
        run = _open_to_train(folder, overrides, config, accept_data)
        if not known:
            stack.enter_context(exclusive(folder.lock))
            with together():
                if jax.process_index() == 0 and folder.config.is_file():
                    raise UserError(f"--workdir: {workdir} was begun by another command meanwhile; try again")
        return _train(run, folder, started)


def _open_to_train(folder: Workdir, overrides: Overrides, config: ConfigSource, accept_data: bool) -> Run:
    """The run, checked as far as it can be before anything of it is written."""
    values = read_config(config) if config else folder.read_config()
    frozen = check_config(inherit(values, folder, overrides), overrides)
    folder.check(frozen)
    steps, trained = frozen.train.steps, folder.trained_steps()
    if trained > steps:
        raise UserError(f"config.train.steps: {steps}, but {folder.path} has trained {trained} steps already")
    if not folder.begun:
        refuse_idle(frozen)
    run = open_run(folder, frozen)
    experiment: Any = run.experiment
    with together():
        if jax.process_index() == 0 and not accept_data:
            folder.check_data(describe(experiment.data))
    run.prepare()
    return run


def _train(run: Run, folder: Workdir, started: float | None) -> str:
    experiment: Any = run.experiment
    first, trained = jax.process_index() == 0, folder.trained_steps()
    if first:
        folder.write(run.config, experiment.data.kept(), describe(experiment.data))
        size = sum(leaf.size for leaf in jax.tree.leaves(run.abstract.params))
        devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
        steps = run.config.train.steps
        print(f"{folder.path}: {size:,} parameters on {devices}, from step {trained} to {steps}", flush=True)
        for line in (*run.experiment.opening_lines(), *experiment.data.division()):
            print(line, flush=True)
        if run.take_over is not None:
            origin = f"parameters of {run.take_over.folder}, step {run.take_over.step}:"
            print(origin, *run.take_over.table(), sep="\n", flush=True)
    _, reason = run.train(started)
    if first and reason != "finished":
        print(f"Go on with: {command(folder)}")
    elif first:
        for line in closing(run, folder):
            print(line)
    return reason


def analyze(workdir: str, overrides: Overrides = (), step: Step | None = None, **asked: str | None) -> None:
    """Prints what the run's embeddings say; `asked` are the fields of `experiments.embeddings.Request`."""
    request = embeddings.Request(**asked)
    run, params = load(workdir, overrides, step)
    with run.placed():
        print("\n".join(embeddings.analyze(run.experiment, params, request)))


def check_config(values: dict[str, Any], overrides: Overrides = ()) -> Any:
    """The frozen config of the experiment that the key `experiment` names, every key of it checked."""
    override(values, overrides)
    return freeze(find_experiment(values.get("experiment")).Config, values)


def inherit(values: dict[str, Any], folder: Workdir, overrides: Overrides) -> dict[str, Any]:
    """The values, with the model's own from the run that `initialize_from` names, or from the folder's once
    it has begun: a pre-trained model is what it is, and need not be described again."""
    override(values, overrides)
    source = values.get("initialize_from")
    if source and isinstance(values.get("model"), dict):
        theirs = (folder if folder.begun else named(source)).read_config().get("model", {})
        values["model"] = values["model"] | {
            key: value for key, value in theirs.items() if key in values["model"] and key not in OWN
        }
    return values


def open_run(folder: Workdir, config: Any) -> Run:
    """The run of a config, with the folder's tokenizer and labels where it has them."""
    kept = folder.read_kept()
    if config.initialize_from and "tokenizer" not in kept:
        kept |= {
            name: value
            for name, value in named(config.initialize_from).read_kept().items()
            if name == "tokenizer"
        }
    experiment = find_experiment(config.experiment)(config, **kept)
    return Run(experiment, config, folder.path, folder.read_lengths(config.train.steps))


def named(run: str | os.PathLike) -> Workdir:
    """The folder of "runs/lm", or of "runs/lm@200", which names a checkpoint of it."""
    return Workdir(split_step(run)[0])


def reopen_run(workdir: str | os.PathLike, overrides: Overrides = ()) -> Run:
    """The run that a folder holds.

    Raises:
      UserError: it holds none, or one that has no checkpoint yet; a key that cannot matter any more.
    """
    folder = named(workdir)
    values = folder.read_config()
    if not folder.begun:
        raise UserError(f"--workdir: {folder.path} has no checkpoints yet; train first")
    for key, _ in overrides:
        if key.startswith(OVER) and key not in STILL:
            raise UserError(f"--config.{key}: it is for training, and changes nothing of a trained model")
    return open_run(folder, check_config(values, overrides))


def chosen(run: Run, workdir: str | os.PathLike, step: Step | None = None) -> Step:
    """Which checkpoint is meant: `step`, or the one that `workdir` names, "runs/lm@200"; where none is, the
    best one, where the run keeps it, or the latest.

    Raises:
      UserError: both name one, and not the same.
    """
    other = split_step(workdir)[1]
    if step is not None and other not in (None, step):
        raise UserError(f"--step: {step}, but --workdir names {other}; give one of them")
    step = other if step is None else step
    return step if step is not None else "best" if run.config.train.keep_best else "latest"


def load(
    workdir: str | os.PathLike, overrides: Overrides = (), step: Step | None = None
) -> tuple[Run, Params]:
    """The run that a folder holds, and its trained parameters: those of `step`, as `chosen` says. In a
    notebook, `run.experiment` has the model. Raises as `reopen_run` does."""
    run = reopen_run(workdir, overrides)
    return run, run.restore_params(chosen(run, workdir, step))
