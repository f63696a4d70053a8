"""Writers to experiment trackers: Weights & Biases and MLflow.

Where they write to is said by their own environment variables, such as `WANDB_PROJECT`, `WANDB_MODE=offline`,
`MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME`. A run has the name of its folder and the keys of its
config. Its id is kept in `trackers.json`, so that a resumed run goes on in the same curves; values of steps
that a killed run had already written stay there beside the new ones.
"""

import itertools
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from transformer.run_folder import RunFolder

PER_CALL = {"metrics": 1000, "parameters": 100}
"""The most values that a call of MLflow takes."""


class WeightsAndBiases:
    """A run of Weights & Biases (`pip install wandb`), whose files are in the run folder's `wandb/`."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        import wandb

        run_id = known_id(folder, "wandb") or secrets.token_hex(4)
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
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Waits until all values are sent, or offline written."""
        self._run.finish()


class MLflow:
    """A run of MLflow (`pip install mlflow`)."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        import mlflow

        known = known_id(folder, "mlflow")
        run = mlflow.start_run(run_id=known, run_name=None if known else folder.path.resolve().name)
        self._mlflow, self._client, self._id = mlflow, mlflow.MlflowClient(), run.info.run_id
        if not known:
            keep_id(folder, "mlflow", self._id)
            param = mlflow.entities.Param
            params = [param(key, str(value)) for key, value in config_keys(folder).items()]
            for part in _parts(params, PER_CALL["parameters"]):
                self._client.log_batch(self._id, params=part)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values."""
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        metrics = [metric(name, value, now, step) for name, value in values.items()]
        for part in _parts(metrics, PER_CALL["metrics"]):
            self._client.log_batch(self._id, metrics=part)

    def close(self) -> None:
        """Ends the run of MLflow."""
        self._mlflow.end_run()


def known_id(folder: RunFolder, tracker: str) -> str | None:
    """The id that a tracker knows the run by; None if it does not yet."""
    return _ids(folder).get(tracker)


def keep_id(folder: RunFolder, tracker: str, run_id: str) -> None:
    """Writes the id to `trackers.json`."""
    folder.trackers.write_text(json.dumps(_ids(folder) | {tracker: run_id}))


def config_keys(folder: RunFolder) -> dict[str, Any]:
    """The keys of the folder's config, {"model.d_model": 256, ...}; {} if there is none."""
    return dict(_flat(json.loads(folder.config.read_text()))) if folder.config.exists() else {}


def _ids(folder: RunFolder) -> dict[str, str]:
    return json.loads(folder.trackers.read_text()) if folder.trackers.exists() else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(values)
    while part := list(itertools.islice(iterator, size)):
        yield part
