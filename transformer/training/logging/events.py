"""Event files of TensorBoard, by tensorboardX without TensorFlow or its thread, which a full disk ends."""

import contextlib
import json
import logging
import socket
import struct
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer.run_folder import RunFolder
from transformer.training.checkpoints.storage import AppendFile

PREFIX = "events.out.tfevents."
"""The beginning of the name of a file that TensorBoard reads."""


class Events:
    """A new file of events in a folder, each of which is written whole and at once, or not at all.

    Events of an earlier file from step `purge_step` on are hidden. Raises `OSError`, as `AppendFile`.
    """

    def __init__(self, directory: Path, suffix: str = "", purge_step: int | None = None) -> None:
        with _without_torch():
            from tensorboardX import record_writer, summary
            from tensorboardX.proto import event_pb2

        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it warns of each NaN
        self._checksum, self._summary, self._pb = record_writer.masked_crc32c, summary, event_pb2
        directory.mkdir(parents=True, exist_ok=True)
        # The name has fractions of a second: a run may open a file more than once in a second.
        name = f"{PREFIX}{time.time():.6f}.{socket.gethostname()}{suffix}"
        self._file = AppendFile(directory / name)
        first = [event_pb2.Event(file_version="brain.Event:2")]
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            first.append(event_pb2.Event(step=purge_step, session_log=start))
        self._write(*first)

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a scalar for each value, all of them or none."""
        summaries = [self._summary.scalar(name, value) for name, value in values.items()]
        self._write(*(self._pb.Event(step=step, summary=summary) for summary in summaries))

    def add_picture(self, name: str, pixels_hwc: Any, step: int) -> None:
        """Writes a picture of 8-bit numbers, or of those from 0 to 1."""
        summary = self._summary.image(name, pixels_hwc, dataformats="HWC")
        self._write(self._pb.Event(step=step, summary=summary))

    def add_picture_file(self, name: str, path: Path, step: int) -> None:
        """Writes the picture of a file, as `add_picture`."""
        from matplotlib.image import imread

        self.add_picture(name, imread(path)[..., :3], step)

    def add_text(self, name: str, text: str, step: int) -> None:
        """Writes a text, which is shown as it is: TensorBoard reads Markdown, where lines that are indented
        by four spaces are not changed."""
        shown = textwrap.indent(text, "    ", lambda line: True)
        self._write(self._pb.Event(step=step, summary=self._summary.text(name, shown)))

    def add_hyperparameters(self, name: str, values: Mapping[str, Any]) -> None:
        """Writes the keys of a run for the page of hyperparameters, on which it is called `name`; a value
        that is not a number or a text is written as JSON."""
        from tensorboardX.proto import plugin_hparams_pb2, summary_pb2

        start = plugin_hparams_pb2.SessionStartInfo(group_name=name)
        for key, value in values.items():
            match value:
                case bool():
                    start.hparams[key].bool_value = value
                case int() | float():
                    start.hparams[key].number_value = value
                case _:
                    start.hparams[key].string_value = value if isinstance(value, str) else json.dumps(value)
        content = plugin_hparams_pb2.HParamsPluginData(session_start_info=start, version=0)
        plugin = {"plugin_name": "hparams", "content": content.SerializeToString()}
        metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
        value = summary_pb2.Summary.Value(tag="_hparams_/session_start_info", metadata=metadata)
        self._write(self._pb.Event(summary=summary_pb2.Summary(value=[value])))

    def _write(self, *events: Any) -> None:
        now = time.time()
        for event in events:
            event.wall_time = now
        self._file.write(b"".join(self._record(event.SerializeToString()) for event in events))

    def _record(self, data: bytes) -> bytes:
        """A record of TensorFlow: length, its checksum, data, their checksum."""
        size = struct.pack("<Q", len(data))
        sums = [struct.pack("<I", self._checksum(part)) for part in (size, data)]
        return size + sums[0] + data + sums[1]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_) -> None:
        self.close()


class RunEvents:
    """The values of a run from the step after `step` on, with its config. The file that values are added to
    is always the last one: TensorBoard reads a file to its end, then the next, and does not return to one."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        # TensorBoard hides nothing at the first start of a run that it reads, so the first file has one too.
        self._directory = folder.events
        self._last = Events(self._directory, purge_step=step + 1)
        self._files = len(event_files(self._directory))
        if keys := config_keys(folder):
            self._last.add_text("config", json.dumps(keys, indent=1), step)
            self._last.add_hyperparameters(folder.path.resolve().name, keys)

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a scalar for each value, in a new file if samples or pictures have come since."""
        if len(event_files(self._directory)) != self._files:
            self._last.close()
            self._last = Events(self._directory)
            self._files = len(event_files(self._directory))
        self._last.add_scalars(step, values)

    def close(self) -> None:
        """Closes the file."""
        self._last.close()


def event_files(directory: Path) -> list[Path]:
    """The files of events in a folder, in the order in which TensorBoard reads them."""
    return sorted(directory.glob(f"{PREFIX}*"))


def config_keys(folder: RunFolder) -> dict[str, Any]:
    """The keys of the folder's config, {"model.d_model": 256, ...}; {} if there is none. A mapping whose keys
    are not names, such as `data.sources`, is one value: trackers do not take any text as a key."""
    return (
        dict(_flat(json.loads(folder.config.read_text(encoding="utf-8")))) if folder.config.exists() else {}
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and all(name.isidentifier() for name in value):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Keeps tensorboardX from importing PyTorch, which would take seconds."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]
