"""Writers to experiment trackers: Weights & Biases and MLflow.

Where they write to is set by their own environment variables, such as `WANDB_PROJECT`, `WANDB_MODE=offline`,
`MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME`. A run has the name of its folder and the keys of its
config. Its id is kept in `trackers.json`, so that a resumed run continues in the same curves; values of steps
that a killed run had already written stay there beside the new ones. A run that ends with an error has failed
there too.

A tracker that cannot be started is an error; one that fails later is not, whatever its library raises.
"""

import contextlib
import itertools
import json
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.training.checkpoints.storage import reason
from transformer.training.logging.events import config_keys

PER_CALL = {"metrics": 1000, "parameters": 100}
"""The most values that a call of MLflow takes."""


class WeightsAndBiases:
    """A run of Weights & Biases (`pip install wandb`), whose files are in the run folder's `wandb/`."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        import wandb

        run_id = known_id(folder, "wandb") or secrets.token_hex(4)
        with _starting(folder, "wandb"):
            self._run = wandb.init(
                id=run_id,
                resume="allow",
                name=folder.path.resolve().name,
                dir=str(folder.path),
                config=config_keys(folder),
                settings=wandb.Settings(console="off"),
            )
        keep_id(folder, "wandb", run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values; those of the same step are merged."""
        with _answering():
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Waits until all values are sent, or offline written."""
        with _ending("wandb"):
            self._run.finish(exit_code=int(_has_failed()))


class MLflow:
    """A run of MLflow (`pip install mlflow`)."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        import mlflow

        known = known_id(folder, "mlflow")
        self._mlflow = mlflow
        with _starting(folder, "mlflow"):
            run = mlflow.start_run(run_id=known, run_name=None if known else folder.path.resolve().name)
            self._client, self._id = mlflow.MlflowClient(), run.info.run_id
            if not known:
                param = mlflow.entities.Param
                params = [param(key, str(value)) for key, value in config_keys(folder).items()]
                for batch in _batches(params, PER_CALL["parameters"]):
                    self._client.log_batch(self._id, params=batch)
        keep_id(folder, "mlflow", self._id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values."""
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        metrics = [metric(name, value, now, step) for name, value in values.items()]
        with _answering():
            for batch in _batches(metrics, PER_CALL["metrics"]):
                self._client.log_batch(self._id, metrics=batch)

    def close(self) -> None:
        """Ends the run of MLflow."""
        with _ending("mlflow"):
            self._mlflow.end_run("FAILED" if _has_failed() else "FINISHED")


@contextlib.contextmanager
def _starting(folder: RunFolder, tracker: str) -> Iterator[None]:
    """Raises `UserError` for whatever a tracker's library raises when a run is started."""
    try:
        yield
    except Exception as error:
        known = known_id(folder, tracker)
        ours = f"; {folder.trackers} names the run {known}, without it a new one is started" if known else ""
        raise UserError(f"config.train.writers: {tracker!r} does not start: {reason(error)}{ours}") from error


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raises `OSError` for whatever a tracker's library raises: the values are kept, and tried again."""
    try:
        yield
    except Exception as error:
        raise OSError(reason(error)) from error


@contextlib.contextmanager
def _ending(tracker: str) -> Iterator[None]:
    """Prints a warning for whatever a tracker's library raises when training is over."""
    try:
        yield
    except Exception as error:
        print(f"warning: {tracker}: the run could not be ended there ({reason(error)})", file=sys.stderr)


def _has_failed() -> bool:
    """Whether an error is ending training, while the writers are closed."""
    return sys.exc_info()[0] is not None


def known_id(folder: RunFolder, tracker: str) -> str | None:
    """The id that a tracker knows the run by; None if it does not yet."""
    return _ids(folder).get(tracker)


def keep_id(folder: RunFolder, tracker: str, run_id: str) -> None:
    """Writes the id to `trackers.json`."""
    replace(folder.trackers, json.dumps(_ids(folder) | {tracker: run_id}))


def _ids(folder: RunFolder) -> dict[str, str]:
    if not folder.trackers.exists():
        return {}
    try:
        ids = parse_json(folder.trackers.read_bytes())
    except ValueError:
        ids = None
    if not isinstance(ids, dict) or not all(isinstance(run_id, str) for run_id in ids.values()):
        raise UserError(
            f"{folder.trackers}: expected the ids of trackers; without it new runs are started there"
        )
    return ids


def _batches(values: list[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(values)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
