"""Measurements of every device during training."""

import jax
import pytest

from transformer.training.extras import stragglers
from transformer.training.extras.stragglers import SLOW, Stragglers

WINDOW = {"train/input_wait": 0.25, "train/seconds_per_step": 2.0}


@pytest.fixture
def hook(monkeypatch):
    """A hook whose clock shows `hook.now`, and whose devices take `hook.times`."""
    hook = Stragglers(10)
    hook.now, hook.times = 0.0, [1.0] * jax.local_device_count()
    monkeypatch.setattr(stragglers.time, "perf_counter", lambda: hook.now)
    monkeypatch.setattr(hook, "_seconds", lambda device: hook.times[jax.local_devices().index(device)])
    return hook


def test_devices_are_measured_each_by_itself():
    hook = Stragglers(10)
    seconds = [hook._seconds(device) for device in jax.local_devices()[:2]]
    assert all(0 < s < 5 for s in seconds)
    values = hook(10, None, {})
    assert values["devices/slowest"] >= 1 and values["devices/ms"] > 0 and "train/goodput" not in values


def test_a_slow_device_is_named(hook, capfd):
    hook.times[3] = 1.01 * SLOW
    values = hook(10, None, WINDOW)
    assert values["devices/slowest"] == pytest.approx(1.01 * SLOW) and values["devices/ms"] == 1000
    assert values["devices/input_wait"] == 0.25
    line = f"step 10: device 3 of process 0 takes {1010 * SLOW:.1f} ms; the median device takes 1000.0 ms\n"
    assert capfd.readouterr().err == line
    hook.times[3], hook.now = 0.99 * SLOW, 9.0
    hook(20, None, WINDOW)
    assert capfd.readouterr().err == ""


def test_goodput_is_the_share_of_the_time_between_measurements_that_steps_took(hook):
    hook.now = 100.0
    assert "train/goodput" not in hook(10, None, WINDOW)
    hook.now = 125.0  # ten steps of 2 s, and 5 s of something else
    assert hook(20, None, WINDOW)["train/goodput"] == pytest.approx(20 / 25)
    hook.now = 141.0  # steps became quicker than the mean of the last window
    assert hook(30, None, WINDOW)["train/goodput"] == 1
    hook.now = 241.0
    assert "train/goodput" not in hook(40, None, {})
