"""A session of training in the folder of a run: lock it, open the run, train, summarise."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from transformer.distributed import shared_errors
from transformer.errors import Recoverable, UserError
from transformer.layers.attention.kernels import logging_kernels
from transformer.run_folder import RunFolder
from transformer.training.checkpoints.checkpoint import split_step
from transformer.training.hooks import Hook
from transformer.training.optim.roles import left_by_rules, shares
from transformer.training.run import Run
from workdir.closed_pipes import ignore_closed_pipes
from workdir.compatibility.consistency import check_folder
from workdir.folder import steps_of, write_start
from workdir.included import suggest_including
from workdir.lock import exclusive
from workdir.opening import ConfigSource, Overrides, open_to_train
from workdir.provenance import command, command_line, record
from workdir.summary import summary


def train(
    workdir: str,
    overrides: Overrides = (),
    config: ConfigSource = "",
    started: float | None = None,
    accept_data: bool = False,
    hooks: Sequence[Hook] = (),
) -> str:
    """Trains from scratch or from the latest checkpoint in the folder, and prints a summary. Returns why
    training ended: "finished", or the name of a signal.

    `config` is a config file or the result of its `get_config`; the default is the folder's own config. Data
    that have changed since the run started are an error, unless `accept_data`. `hooks` are called after the
    run's own. Training continues if the reader of the output exits. A damaged checkpoint is moved aside, and
    the one before it is taken; if there is none, it is an error. Where training goes wrong, it goes back to
    an earlier checkpoint as often as `train.rollbacks` says.
    """
    if split_step(workdir)[1] is not None:
        raise UserError(f"--workdir: {workdir} names a checkpoint; to start from it, set initialize_from")
    folder, command_given = RunFolder(workdir), command_line(config, str(workdir), overrides)
    while True:
        try:
            with ignore_closed_pipes(), _opened(folder, overrides, config, accept_data, hooks) as run:
                if jax.process_index() == 0:
                    write_start(folder, run.config, run.experiment.data)  # type: ignore[attr-defined]
                    record(run, folder, command_given)
                    print(*_first_lines(run, steps_of(folder)), sep="\n", flush=True)
                with logging_kernels(lambda line: run.experiment.note(line, line)):
                    _, reason = run.train(started)
                if jax.process_index() == 0:
                    suggest_including(config)
                    resume = f"Resume with: {command(folder)}"
                    print(*(summary(run, folder) if reason == "finished" else [resume]), sep="\n")
                return reason
        except Recoverable as error:
            from workdir.recovery.remedies import recover

            recover(workdir, error)
            started = None


@contextlib.contextmanager
def _opened(
    folder: RunFolder, overrides: Overrides, config: ConfigSource, accept_data: bool, hooks: Sequence[Hook]
) -> Iterator[Run]:
    """The run to train, in a context that holds the lock of its folder. Nothing is written before all checks
    have passed, not even a lock in a new folder."""
    if jax.process_count() > 1:
        check_folder(folder)
    with contextlib.ExitStack() as stack:
        if known := folder.config.is_file():
            stack.enter_context(exclusive(folder.lock))
        run = open_to_train(folder, overrides, config, accept_data, hooks)
        if not known:
            stack.enter_context(exclusive(folder.lock))
            with shared_errors():
                if jax.process_index() == 0 and folder.config.is_file():
                    raise UserError(
                        f"--workdir: {folder.path} was started by another command meanwhile; try again"
                    )
        yield run


def _first_lines(run: Run, trained: int) -> Iterator[str]:
    size = sum(leaf.size for leaf in jax.tree.leaves(run.abstract.params))
    mesh = f"{run.mesh.size} x {run.mesh.devices.flat[0].device_kind}"
    yield f"{run.folder.path}: {size:,} parameters on {mesh}, from step {trained} to {run.config.train.steps}"
    if run.config.optimizer.is_muon:
        params = _with_main_optimizer(run) if run.config.optimizer.has_rules else run.abstract.params
        yield shares(params, run.roles)
    experiment: Any = run.experiment
    yield from experiment.data_lines()
    yield from experiment.data.division()
    if run.warm_start is not None:
        yield f"parameters of {run.warm_start.origin}:"
        yield from run.warm_start.table()


def _with_main_optimizer(run: Run) -> Any:
    """The parameters that no rule freezes or gives another optimizer."""
    from transformer.training.optim.rules import parameter_settings

    params = run.abstract.params
    return left_by_rules(params, parameter_settings(params, run.config.optimizer, run.layers, run.roles))
