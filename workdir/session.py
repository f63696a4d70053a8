"""A session of training in the folder of a run: lock it, open the run, train, summarise."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from transformer.distributed import together
from transformer.errors import Recoverable, UserError
from workdir.included import suggest_including

if TYPE_CHECKING:
    from transformer.training.hooks import Hook
    from transformer.training.run import Run
    from workdir.opening import Overrides


def train(
    workdir: str,
    overrides: "Overrides" = (),
    config: str | Mapping[str, Any] = "",
    started: float | None = None,
    accept_data: bool = False,
    hooks: Sequence["Hook"] = (),
) -> str:
    """Trains from scratch or from the latest checkpoint in the folder, and prints a summary. Returns why
    training ended: "finished", or the name of a signal.

    `config` is a config file or the result of its `get_config`; the default is the folder's own config. Data
    that have changed since the run started are an error, unless `accept_data`. `hooks` are called after the
    run's own. Training continues if the reader of the output exits. A damaged checkpoint is moved aside, and
    the one before it is taken; if there is none, it is an error. Where training goes wrong, it goes back to
    an earlier checkpoint as often as `train.rollbacks` says.
    """
    while True:
        try:
            return _train(workdir, overrides, config, started, accept_data, hooks)
        except Recoverable as error:
            from workdir.recovery.remedies import recover

            recover(workdir, error)
            started = None


def _train(
    workdir: str,
    overrides: "Overrides",
    config: str | Mapping[str, Any],
    started: float | None,
    accept_data: bool,
    hooks: Sequence["Hook"],
) -> str:
    import jax

    from transformer.layers.attention.kernels import logging_kernels
    from transformer.training.checkpoints.checkpoint import split_step
    from workdir.compatibility.consistency import check_folder
    from workdir.folder import Workdir
    from workdir.lock import exclusive
    from workdir.opening import open_to_train
    from workdir.provenance import command, command_line, record
    from workdir.summary import summary

    if split_step(workdir)[1] is not None:
        raise UserError(f"--workdir: {workdir} names a checkpoint; to start from it, set initialize_from")
    folder = Workdir(workdir)
    with ignore_closed_pipes(), contextlib.ExitStack() as stack:
        if jax.process_count() > 1:
            check_folder(folder)
        if known := folder.config.is_file():
            stack.enter_context(exclusive(folder.lock))
        run = open_to_train(folder, overrides, config, accept_data, hooks)
        if not known:  # nothing is written before this, not even a lock
            stack.enter_context(exclusive(folder.lock))
            with together():
                if jax.process_index() == 0 and folder.config.is_file():
                    raise UserError(
                        f"--workdir: {workdir} was started by another command meanwhile; try again"
                    )
        first = jax.process_index() == 0
        if first:
            folder.write(run.config, run.experiment.data)  # type: ignore[attr-defined]
            record(run, folder, command_line(config, str(workdir), overrides))
            print(*_first_lines(run, folder.trained_steps()), sep="\n", flush=True)
        with logging_kernels(lambda line: run.experiment.note(line, line)):
            _, reason = run.train(started)
        if first:
            suggest_including(config)
            lines = summary(run, folder) if reason == "finished" else [f"Resume with: {command(folder)}"]
            print(*lines, sep="\n")
        return reason


def _with_main_optimizer(run: "Run") -> Any:
    """The parameters that no rule freezes or gives another optimizer."""
    from transformer.training.optim.roles import left_by_rules
    from transformer.training.optim.rules import parameter_settings

    params = run.abstract.params
    return left_by_rules(params, parameter_settings(params, run.config.optimizer, run.layers, run.roles))


def _first_lines(run: "Run", trained: int) -> Iterator[str]:
    import jax

    from transformer.training.optim.roles import shares

    size = sum(leaf.size for leaf in jax.tree.leaves(run.abstract.params))
    mesh = f"{run.mesh.size} x {run.mesh.devices.flat[0].device_kind}"
    yield f"{run.folder.path}: {size:,} parameters on {mesh}, from step {trained} to {run.config.train.steps}"
    if run.config.optimizer.is_muon:
        params = _with_main_optimizer(run) if run.config.optimizer.has_rules else run.abstract.params
        yield shares(params, run.roles)
    experiment: Any = run.experiment
    if hasattr(experiment, "data_lines"):
        yield from experiment.data_lines()
    yield from experiment.data.division()
    if run.warm_start is not None:
        yield f"parameters of {run.warm_start.origin}:"
        yield from run.warm_start.table()


class PipeSafe:
    """A stream that drops its output when its reader has exited."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes without buffering, so that later no flush can fail; or drops."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            silence(self._stream)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def silence(stream: TextIO) -> None:
    """Redirects a stream to the null device, so that buffered output raises no error at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextlib.contextmanager
def ignore_closed_pipes() -> Iterator[None]:
    """A context in which output continues without error after its reader has exited (`| head -1`)."""
    out: Any = PipeSafe(sys.stdout)
    error: Any = PipeSafe(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        yield
