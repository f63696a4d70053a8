"""Checkpoints of the training state, written in the background and restored onto any mesh."""

import contextlib
import functools
import importlib
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from absl import logging

from transformer.errors import Recoverable, UserError
from transformer.training.checkpoints.checksums import (
    arrays,
    check_chunks,
    check_files,
    checksums,
    compare,
    some,
)
from transformer.training.state import Params, State

Step = int | str
"""A checkpoint: a step, "latest" or "best"."""


class DamagedCheckpoint(Recoverable):
    """A checkpoint that cannot be read, or whose arrays are not those that were written."""

    def __init__(self, path: str, why: object) -> None:
        self.path = path
        super().__init__(f"{path}: the checkpoint is damaged: {str(why).partition(chr(10))[0][:160]}")


def trained_steps(directory: str | os.PathLike) -> int:
    """The step of the latest complete checkpoint in a run's folder of checkpoints; 0 if there is none, so the
    run has not started."""
    return max(checkpoint_steps(directory), default=0)


def checkpoint_steps(directory: str | os.PathLike) -> list[int]:
    """The steps of the complete checkpoints in a run's folder of checkpoints, in any order."""
    found = os.listdir(directory) if os.path.isdir(directory) else ()
    return [int(name) for name in found if name.isdecimal() and not _is_empty(os.path.join(directory, name))]


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
    save. Readers of a run that is being trained pass `write=False`. Close it, or use it as a context manager:
    otherwise an unfinished save is lost at exit. Saving and restoring are collective: every process must call
    them.
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
        """Orbax's manager of the folder, which is opened when it is first needed."""
        if self._write:
            self._remove_empty()
        for step in checkpoint_steps(self.directory):
            with self._reading(step):
                check_files(Path(self._path(step)))
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
        kept = [policies.LatestN(self.keep_last), *([best] if self.keep_best else [])]
        options = orbax.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            best_fn=self._merit if self.keep_best else None,  # without it orbax writes no metrics
            cleanup_tmp_directories=self._write,
            create=self._write,
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
        """The steps of the complete checkpoints, in ascending order."""
        written = checkpoint_steps(self.directory)
        return sorted({*written} & {*self._manager.all_steps()}) if written else []

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
        return self._read(self.find(step), abstract, partial=False)

    def restore_params(self, abstract: Params, step: Step = "latest") -> Params:
        """The parameters for evaluation and prediction (their moving average if the run keeps one); the
        optimizer state is not read. Raises as `restore`."""
        found = self.find(step)
        name = self._params_name(found)
        return self._read(found, {name: abstract}, partial=True)[name]

    def stored_params(self, step: Step = "latest") -> dict[str, tuple]:
        """Path -> (shape, type) of the parameters that `restore_params` reads."""
        found = self.find(step)
        return arrays(self.stored(found)[self._params_name(found)])

    def restore_some(self, abstract: Params, step: Step = "latest") -> Params:
        """`restore_params` from a checkpoint that may have more parameters than `abstract`."""
        found = self.find(step)
        name = self._params_name(found)
        return self._restore(found, {name: abstract}, partial=True)[name]

    def restore_parts(self, abstract: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Some fields of a state by their names; raises as `restore`."""
        return self._read(step, abstract, partial=True)

    def stored(self, step: int) -> dict[str, Any]:
        """The fields of the state in a checkpoint, with descriptions in place of arrays."""
        with self._reading(step):
            found = self._manager.item_metadata(step).tree
            check_chunks(found)
            return found

    def find(self, step: Step) -> int:
        """The step of a checkpoint; raises `UserError` if there is none."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.directory}: there are no checkpoints")
        if step == "best":
            return self._best(steps)
        found = steps[-1] if step == "latest" else int(step)
        if found not in steps:
            raise UserError(f"{self.directory}: no checkpoint of step {step}; there are {some(steps)}")
        return found

    def _best(self, steps: list[int]) -> int:
        """The best step; the latest if no checkpoint has metrics (the run was stopped before an
        evaluation)."""
        if not self.keep_best:
            raise UserError(f"{self.directory}: no checkpoint was saved with train.keep_best")
        metrics = {step: self._manager.metrics(step) for step in steps}
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

    def _params_name(self, step: int) -> str:
        return "params" if self.stored(step).get("ema") is None else "ema"

    def _read(self, step: int, abstract: Any, partial: bool) -> Any:
        stored = self.stored(step)
        described = {name: stored[name] for name in abstract} if partial else stored
        if (found := arrays(described)) != (wanted := arrays(abstract)):
            differing = compare(found, wanted)
            raise UserError(f"{self._path(step)}: the checkpoint is not of this config: {differing}")
        return self._restore(step, abstract, partial)

    def _restore(self, step: int, abstract: Any, partial: bool) -> Any:
        orbax = _load_orbax()
        shardings = orbax.checkpoint_utils.construct_restore_args(abstract)
        args = orbax.args.PyTreeRestore(abstract, restore_args=shardings, partial_restore=partial)
        with self._reading(step):
            found = self._manager.restore(step, args=args)
            written = dict((self._manager.metadata(step).custom_metadata or {}).get("checksums", {}))
        stored, restored = arrays(self.stored(step)), arrays(found)
        for path, checksum in checksums(found).items() if written else ():
            if stored[path] == restored[path] and checksum != written.get(path):
                raise DamagedCheckpoint(self._path(step), f"checksum mismatch in {path}")
        return found

    def _path(self, step: int) -> str:
        return os.path.join(self.directory, str(step))

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """A context that raises errors of reading as errors of this checkpoint; orbax has no class of its own
        for them."""
        path = self._path(step)
        try:
            yield
        except PermissionError as error:
            raise UserError(f"{error.filename or path}: cannot be read (permission denied)") from None
        except (MemoryError, jax.errors.JaxRuntimeError):  # of this machine, not of the file
            raise
        except Exception as error:
            if not os.path.isdir(path):
                raise UserError(f"{path}: the checkpoint was deleted while it was read") from None
            raise DamagedCheckpoint(path, error) from error


def _load_orbax() -> ModuleType:
    """Orbax, imported on first use (0.4 s), with its logging reduced."""
    logging.set_verbosity(logging.FATAL)  # its errors are raised too
    return importlib.import_module("orbax.checkpoint")
