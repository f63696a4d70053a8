"""Event files of TensorBoard, by tensorboardX without TensorFlow or its thread, which a full disk ends."""

import contextlib
import logging
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer.training.checkpoints.storage import AppendFile


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
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}{suffix}"
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
