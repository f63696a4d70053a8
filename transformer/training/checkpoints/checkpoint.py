"""Checkpoints of the training state, written in the background and restored onto any mesh."""

import contextlib
import functools
import importlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from absl import logging

from transformer.errors import UserError
from transformer.training.checkpoints.checksums import arrays, checksums, compare, some
from transformer.training.checkpoints.untrusted import DamagedCheckpoint, check_chunks, untrusted
from transformer.training.state import Params, State

STATE = "default"
"""The folder of the state in that of a checkpoint: orbax's name for the only item."""

Step = int | str
"""A checkpoint: a step, "latest" or "best"."""


def trained_steps(directory: str | os.PathLike) -> int:
    """The step of the latest complete checkpoint in a run's folder of checkpoints; 0 if there is none, so the
    run has not started."""
    return max(checkpoint_steps(directory), default=0)


def checkpoint_steps(directory: str | os.PathLike) -> list[int]:
    """The steps of the complete checkpoints in a run's folder of checkpoints, in any order."""
    names = os.listdir(directory) if os.path.isdir(directory) else ()
    return [int(name) for name in names if name.isdecimal() and not _is_empty(os.path.join(directory, name))]


def _is_empty(folder: str) -> bool:
    return os.path.isdir(folder) and not os.listdir(folder)


def split_step(run: str | os.PathLike) -> tuple[Path, Step | None]:
    """The folder of a run and the step that "runs/lm@200" names, or "runs/lm@best"; None for the step where
    none is named, as by a folder that has an "@" in its own name."""
    path = Path(run)
    name, _, step = path.name.rpartition("@")
    if not name or path.exists() or not (step.isdecimal() or step in ("latest", "best")):
        return path, None
    return path.with_name(name), int(step) if step.isdecimal() else step


class Checkpoints:
    """The checkpoints of one run in `directory`/<step>.

    The last `keep_last` are kept, and the best one by the metric `keep_best` ("eval/loss"; smaller is better,
    or larger with a minus in front: "-eval/bleu"; "": none) among those saved with this metric. A checkpoint
    is renamed into place when it is complete; incomplete ones are never listed, and deleted before the next
    save. Readers pass `write=False`. Writers close it, or use it as a context manager: otherwise an
    unfinished save is lost at exit. Saving and restoring are collective: all processes call them.
    """

    def __init__(
        self, directory: str | os.PathLike, *, keep_last: int = 1, keep_best: str = "", write: bool = True
    ):
        self.directory = os.path.abspath(directory)
        self.keep_last, self.keep_best, self._write = keep_last, keep_best, write
        if write:
            os.makedirs(self.directory, exist_ok=True)
        elif not os.path.isdir(self.directory):
            raise UserError(f"{self.directory}: there are no checkpoints")

    @functools.cached_property
    def _manager(self) -> Any:
        """Orbax's manager of the folder, which writes; it is opened when it is first needed, and then reads
        the metrics of all checkpoints."""
        self._remove_empty()
        for step in checkpoint_steps(self.directory):
            self._metrics(step)
        return self._open()

    def _remove_empty(self) -> None:
        """Removes empty folders of steps: orbax saves no step before them."""
        for name in os.listdir(self.directory):
            if name.isdecimal() and _is_empty(os.path.join(self.directory, name)):
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    os.rmdir(os.path.join(self.directory, name))

    def _open(self) -> Any:
        orbax = _load_orbax()
        policies = orbax.checkpoint_managers
        best = policies.BestN(get_metric_fn=self._merit, n=1, keep_checkpoints_without_metrics=False)
        rules = [policies.LatestN(self.keep_last), *([best] if self.keep_best else [])]
        options = orbax.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(rules),
            best_fn=self._merit if self.keep_best else None,  # without it orbax writes no metrics
            cleanup_tmp_directories=True,
            # 100 GB at 5 MB/s. Processes that have ended are noticed by other means: this ends only a save
            # that hangs. Orbax's own 20 minutes would end a large run on a slow disk.
            async_options=orbax.AsyncOptions(timeout_secs=6 * 3600),
        )
        handler = orbax.PyTreeCheckpointHandler()
        return orbax.CheckpointManager(self.directory, item_handlers=handler, options=options)

    def _is_open(self) -> bool:
        return "_manager" in vars(self)

    def reopen(self) -> None:
        """Forgets a save that has failed, and deletes what it has written."""
        with contextlib.suppress(Exception):  # that of the save
            self._manager.wait_until_finished()
        with contextlib.suppress(Exception):
            self._manager.close()
        self._manager = self._open()

    def is_saving(self) -> bool:
        """Whether a save is being written."""
        return self._is_open() and self._manager.is_saving_in_progress()

    def written(self) -> list[int]:
        """The steps of the checkpoints that are complete on the disk."""
        return checkpoint_steps(self.directory)

    def room(self) -> int:
        """The bytes that can be written where the checkpoints are."""
        return shutil.disk_usage(self.directory).free

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in ascending order. Where they are written, all of them are
        checked first."""
        written = checkpoint_steps(self.directory)
        known = self._manager.all_steps() if written and self._write else written
        return sorted({*written} & {*known})

    def save(self, step: int, state: State, metrics: Mapping[str, float] | None = None) -> None:
        """Copies the state to the host and returns; writing continues in the background.

        `metrics` are those measured at this step. An existing step only gets those that it was saved without,
        and one without the metric of `keep_best`, or with NaN, is never the best.
        """
        name = self.keep_best.removeprefix("-")
        value = (metrics or {}).get(name, math.nan)
        measured = {name: float(value)} if math.isfinite(value) else None
        if step in self._manager.all_steps():
            return self._add(step, measured)
        tree, metadata = _load_orbax().args.PyTreeSave(state), {"checksums": checksums(state)}
        self._manager.save(step, args=tree, metrics=measured, custom_metadata=metadata)

    def _add(self, step: int, metrics: Mapping[str, float] | None) -> None:
        """Writes the metrics of a step that is already saved, as a signal has it before its evaluation."""
        self.wait()
        if metrics and self._manager.metrics(step) is None:
            orbax, path = _load_orbax(), os.path.join(self._path(step), "metrics")
            with orbax.Checkpointer(orbax.JsonCheckpointHandler(filename="metrics")) as writer:
                writer.save(path, args=orbax.args.JsonSave(metrics), force=True)
            self._manager.reload()

    def restore(self, abstract: State, step: Step = "latest") -> State:
        """The state with the shardings of the `jax.ShapeDtypeStruct`s in `abstract`.

        Raises:
          UserError: no such checkpoint, or its arrays are not exactly those of `abstract`.
        """
        number = self.find(step)
        return self._read(number, abstract, self.stored(number))

    def restore_params(self, abstract: Params, step: Step = "latest") -> Params:
        """The parameters for evaluation and prediction (their moving average if the run keeps one); the
        optimizer state is not read. Raises as `restore`."""
        number = self.find(step)
        name, stored = _params_in(self.stored(number))
        return self._read(number, {name: abstract}, {name: stored})[name]

    def stored_params(self, step: Step = "latest") -> dict[str, tuple]:
        """Path -> (shape, type) of the parameters that `restore_params` reads."""
        return arrays(_params_in(self.stored(self.find(step)))[1])

    def restore_some(self, abstract: Params, step: Step = "latest") -> Params:
        """`restore_params` from a checkpoint that may have more parameters than `abstract`."""
        number = self.find(step)
        name, stored = _params_in(self.stored(number))
        return self._restore(number, {name: abstract}, arrays({name: stored}))[name]

    def restore_parts(self, abstract: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Some fields of a state by their names; raises as `restore`."""
        stored = self.stored(step)
        return self._read(step, abstract, {name: stored[name] for name in abstract})

    def stored(self, step: int) -> dict[str, Any]:
        """The fields of the state in a checkpoint, with descriptions in place of arrays."""
        with untrusted(self._path(step)) as path:
            tree = _load_orbax().PyTreeCheckpointHandler().metadata(path / STATE).tree
            check_chunks(tree)
            return tree

    def find(self, step: Step) -> int:
        """The step of a checkpoint; raises `UserError` if there is none."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.directory}: there are no checkpoints")
        if step == "best":
            return self._best(steps)
        number = steps[-1] if step == "latest" else int(step)
        if number not in steps:
            raise UserError(f"{self.directory}: no checkpoint of step {step}; there are {some(steps)}")
        return number

    def _best(self, steps: list[int]) -> int:
        """The best step; the latest if no checkpoint has metrics (the run was stopped before an
        evaluation)."""
        if not self.keep_best:
            raise UserError(f"{self.directory}: no checkpoint was saved with train.keep_best")
        metrics = {step: self._metrics(step) for step in steps}
        candidates = [step for step in steps if metrics[step]]
        return max(candidates, key=lambda step: self._merit(metrics[step]), default=steps[-1])

    def wait(self) -> None:
        """Waits for unfinished saves; raises their errors."""
        if self._is_open():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for unfinished saves, and frees the threads."""
        if self._is_open():
            self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        # Closing waits for all processes; after an error that is not of all one may be dead.
        if kind is None or issubclass(kind, UserError) or jax.process_count() == 1:
            self.close()

    def _merit(self, metrics: Mapping[str, float]) -> float:
        name = self.keep_best.removeprefix("-")
        value = metrics.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):  # a file from elsewhere
            return -math.inf
        return value if name != self.keep_best else -value

    def _metrics(self, step: int) -> dict[str, Any]:
        """The metrics that a checkpoint was saved with; {}: none."""
        with untrusted(self._path(step)) as path:
            return _values(path / "metrics" / "metrics")

    def _read(self, step: int, abstract: Any, stored: Any) -> Any:
        """`abstract` from a checkpoint that has `stored`, by fields; raises as `restore`."""
        if (saved := arrays(stored)) != (expected := arrays(abstract)):
            differing = compare(saved, expected)
            raise UserError(f"{self._path(step)}: the checkpoint is not of this config: {differing}")
        return self._restore(step, abstract, saved)

    def _restore(self, step: int, abstract: Any, stored: Mapping[str, tuple]) -> Any:
        """The arrays of `abstract`. Those that were `stored` in this shape and type are compared with the
        checksums that they were saved with."""
        orbax = _load_orbax()
        shardings = orbax.checkpoint_utils.construct_restore_args(abstract)
        args = orbax.args.PyTreeRestore(abstract, restore_args=shardings, partial_restore=True)
        with untrusted(self._path(step)) as path:
            restored = orbax.PyTreeCheckpointHandler().restore(path / STATE, args=args)
            written = dict(_values(path / "_CHECKPOINT_METADATA").get("custom_metadata") or {})
            sums = dict(written.get("checksums", {}))
        shapes = arrays(restored)
        for name, checksum in checksums(restored).items() if sums else ():
            if stored[name] == shapes[name] and checksum != sums.get(name):
                raise DamagedCheckpoint(self._path(step), f"checksum mismatch in {name}")
        return restored

    def _path(self, step: int) -> str:
        return os.path.join(self.directory, str(step))


def _params_in(stored: Mapping[str, Any]) -> tuple[str, Any]:
    """The field of a state with the parameters for evaluation, and its value."""
    name = "params" if stored.get("ema") is None else "ema"
    return name, stored[name]


def _values(file: Path) -> dict[str, Any]:
    """The values in a file of JSON; {} if it is not there, as in older checkpoints."""
    return dict(json.loads(file.read_bytes())) if file.exists() else {}


def _load_orbax() -> ModuleType:
    """Orbax, imported on first use (0.4 s), with its logging reduced."""
    logging.set_verbosity(logging.FATAL)  # its errors are raised too
    return importlib.import_module("orbax.checkpoint")
