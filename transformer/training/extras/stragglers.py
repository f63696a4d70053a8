"""Which device or process slows down a run: `train.devices_every`."""

import sys
import time
from collections.abc import Mapping

import jax
import numpy as np
from tqdm import tqdm

from transformer.devices import platform
from transformer.training.hooks import Hook
from transformer.training.state import State

SLOW = 1.15
"""A device is reported if it takes this many times as long as the median device."""

REPEATS = 5

SIZES = {"cpu": (256, "float32"), "gpu": (4096, "bfloat16")}
"""Platform -> the width of the matrices that are multiplied, and their type; others are as GPUs."""


class Stragglers(Hook):
    """Times the same products on every device, one after another, and compares the processes.

    A step ends on all devices together: a slow one, too hot or on a bad link, makes the others wait in their
    collectives, so that the time of a step does not show which it is. Returned are

    - `devices/slowest`: the time of the slowest device, relative to the median;
    - `devices/ms`: the median time;
    - `devices/input_wait`: the largest `train/input_wait` of a process;
    - `train/goodput`: the share of the time since the measurement before that steps took; evaluation, samples
      and saving take the rest.

    A device that is slower than `SLOW` times the median is named on standard error, by process.
    """

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self._last: tuple[int, float] | None = None
        self._program = jax.jit(_products)

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> dict[str, float]:
        """Measures after `step`; every process must call it."""
        from jax.experimental import multihost_utils

        seconds_d = [self._seconds(device) for device in jax.local_devices()]
        own = np.array([metrics.get("train/input_wait", 0.0), *seconds_d])
        all_pd = np.reshape(multihost_utils.process_allgather(own), (jax.process_count(), -1))
        times_pd, median = all_pd[:, 1:], float(np.median(all_pd[:, 1:]))
        for process, device in np.argwhere(times_pd > SLOW * median) if jax.process_index() == 0 else ():
            times = f"{1e3 * times_pd[process, device]:.1f} ms; the median device takes {1e3 * median:.1f} ms"
            tqdm.write(f"step {step}: device {device} of process {process} takes {times}", file=sys.stderr)
        values = {"devices/slowest": float(times_pd.max()) / median, "devices/ms": 1e3 * median}
        values["devices/input_wait"] = float(all_pd[:, 0].max())
        before, self._last = self._last, (step, time.perf_counter())
        if before is not None and "train/seconds_per_step" in metrics:
            stepping = (step - before[0]) * metrics["train/seconds_per_step"]
            values["train/goodput"] = min(1.0, stepping / (self._last[1] - before[1]))
        return values

    def _seconds(self, device: jax.Device) -> float:
        """The least time of the products on a device, after a run that compiles them."""
        size, dtype = SIZES.get(platform(), SIZES["gpu"])
        times = []
        with jax.set_mesh(jax.sharding.Mesh([device], ("alone",))):  # hooks are called within that of the run
            x = jax.device_put(np.full((size, size), 1 / size, dtype), device)
            for _ in range(1 + REPEATS):
                began = time.perf_counter()
                jax.block_until_ready(self._program(x))
                times.append(time.perf_counter() - began)
        return min(times[1:])


def _products(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 16, lambda _, y: x @ y, x)
