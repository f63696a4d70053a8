"""Learning-rate schedules, as factors of the peak learning rate."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Schedule = Callable[[Any], Any]
"""Number of updates made (the optimizer's count) -> learning rate of the next one. For an int it is computed
on the host, so that logging does not wait for the device."""


def _numpy(count: Any) -> ModuleType:
    return jnp if isinstance(count, jax.Array) else np


def warm_up(count, warmup_steps: int):
    """min(1, u / warmup_steps), where u = count + 1 numbers the updates from one: no update has a rate of 0,
    and the peak is reached at update `warmup_steps`."""
    return _numpy(count).minimum(1.0, (count + 1) / max(1, warmup_steps))


def constant(count, config, steps: int):
    """Warm-up, then constant."""
    return warm_up(count, config.warmup_steps)


def inverse_sqrt(count, config, steps: int):
    """min(u / W, sqrt(W / u)) with W = warmup_steps: the original Transformer's schedule.

    The paper's rate d_model^-0.5 min(u^-0.5, u W^-1.5) is this one with a peak of (d_model W)^-0.5.
    Source: Vaswani et al. 2017, section 5.3.
    """
    warmup_steps = max(1, config.warmup_steps)
    xp = _numpy(count)
    return xp.minimum((count + 1) / warmup_steps, xp.sqrt(warmup_steps / (count + 1)))


def cosine(count, config, steps: int):
    """Warm-up, then half a cosine wave to `final_fraction` of the peak.

    The wave lasts `decay_steps` updates, or to the last update of the run if that is 0.
    Source: Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts.
    """
    warmup_steps, final = config.warmup_steps, config.final_fraction
    length = config.decay_steps or max(1, steps - warmup_steps)
    xp = _numpy(count)
    progress = xp.clip((count + 1 - warmup_steps) / length, 0.0, 1.0)
    wave = 0.5 * (1 + xp.cos(np.pi * progress))
    return warm_up(count, warmup_steps) * (final + (1 - final) * wave)


def wsd(count, config, steps: int):
    """Warm-up, stable, decay: linear to `final_fraction` over the last `decay_steps` of the run.

    Source: Hu et al. 2024, "MiniCPM", section 4; linear decay as in Hägele et al. 2024, section 3.
    """
    stable = steps - config.decay_steps
    progress = _numpy(count).clip((count + 1 - stable) / config.decay_steps, 0.0, 1.0)
    return warm_up(count, config.warmup_steps) * (1 - (1 - config.final_fraction) * progress)


def extended(before: Schedule, after: Schedule, at: int, warmup_steps: int) -> Schedule:
    """The schedule of a run whose length was changed after `at` updates, without a jump upwards.

    rate(u) = before(u) up to update `at`, then min(after(u), before(at) + (u - at) / warmup_steps), with
    updates numbered from one: the rate rises with the slope of the warm-up until it meets the schedule of the
    new length. If that is never higher (constant, inverse_sqrt, a decay of fixed length, a shortened run) it
    applies at once. Without a warm-up the rate rises in one step.
    """
    start = float(before(at - 1))

    def rate(count: Any) -> Any:
        risen = start + (count + 1 - at) / warmup_steps if warmup_steps else np.inf
        xp = _numpy(count)
        return xp.where(count < at, before(count), xp.minimum(after(count), risen))[()]

    return rate


SCHEDULES = {"constant": constant, "cosine": cosine, "inverse_sqrt": inverse_sqrt, "wsd": wsd}
"""Value of `optimizer.schedule` -> function (count, `OptimizerConfig`, steps of the run) -> fraction of
`optimizer.learning_rate`."""
