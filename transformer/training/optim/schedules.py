"""Learning-rate schedules, as factors of the peak learning rate.

The rate of step s is a function of s alone, the number that is printed and logged beside it. A step that is
skipped, or passed over by a rollback, uses up its place in the schedule: warm-up and decay end at the steps
that the config names, and the last step of the run has the last rate. A fork continues at the step of its
checkpoint, and an extension as `extended` says; sizes in `train.until` do not change the rate.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Schedule = Callable[[Any], Any]
"""Number of steps made -> learning rate of the next one, so that `schedule(s - 1)` is that of step s. For an
int it is computed on the host, so that logging does not wait for the device."""


def _numpy(count: Any) -> ModuleType:
    return jnp if isinstance(count, jax.Array) else np


def warm_up(count, warmup_steps: int):
    """min(1, s / warmup_steps), where s = count + 1 numbers the steps from one: no step has a rate of 0, and
    the peak is reached at step `warmup_steps`."""
    return _numpy(count).minimum(1.0, (count + 1) / max(1, warmup_steps))


def constant(count, steps: int, warmup_steps: int):
    """Warm-up, then constant."""
    return warm_up(count, warmup_steps)


def inverse_sqrt(count, steps: int, warmup_steps: int):
    """min(s / W, sqrt(W / s)) with W = warmup_steps: the original Transformer's schedule.

    The paper's rate d_model^-0.5 min(s^-0.5, s W^-1.5) is this one with a peak of (d_model W)^-0.5.
    Source: Vaswani et al. 2017, section 5.3.
    """
    warmup_steps = max(1, warmup_steps)
    xp = _numpy(count)
    return xp.minimum((count + 1) / warmup_steps, xp.sqrt(warmup_steps / (count + 1)))


def cosine(count, steps: int, warmup_steps: int, decay_steps: int, final_fraction: float):
    """Warm-up, then half a cosine wave to `final_fraction` of the peak.

    The wave lasts `decay_steps` steps, or to the last step of the run if that is 0.
    Source: Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts.
    """
    length = decay_steps or max(1, steps - warmup_steps)
    xp = _numpy(count)
    progress = xp.clip((count + 1 - warmup_steps) / length, 0.0, 1.0)
    wave = 0.5 * (1 + xp.cos(np.pi * progress))
    return warm_up(count, warmup_steps) * (final_fraction + (1 - final_fraction) * wave)


def wsd(count, steps: int, warmup_steps: int, decay_steps: int, final_fraction: float):
    """Warm-up, stable, decay: linear to `final_fraction` over the last `decay_steps` of the run.

    Source: Hu et al. 2024, "MiniCPM", section 4; linear decay as in Hägele et al. 2024, section 3.
    """
    stable = steps - decay_steps
    progress = _numpy(count).clip((count + 1 - stable) / decay_steps, 0.0, 1.0)
    return warm_up(count, warmup_steps) * (1 - (1 - final_fraction) * progress)


def extended(before: Schedule, after: Schedule, at: int, warmup_steps: int) -> Schedule:
    """The schedule of a run whose length was changed after `at` steps, without a jump upwards.

    rate(s) = before(s) up to step `at`, then min(after(s), before(at) + (s - at) / warmup_steps), with steps
    numbered from one: the rate rises with the slope of the warm-up until it meets the schedule of the
    new length. If that is never higher (constant, inverse_sqrt, a decay of fixed length, a shortened run) it
    applies at once. Without a warm-up the rate rises in one step.
    """
    start = float(before(at - 1))

    def rate(count: Any) -> Any:
        risen = start + (count + 1 - at) / warmup_steps if warmup_steps else np.inf
        xp = _numpy(count)
        return xp.where(count < at, before(count), xp.minimum(after(count), risen))[()]

    return rate


SCHEDULES: dict[str, Callable[..., Any]] = {
    "constant": constant,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "wsd": wsd,
}
"""Value of `optimizer.schedule` -> function (count, steps of the run, further arguments) -> fraction of
`optimizer.learning_rate`. The names of further arguments are keys of `OptimizerConfig`, or of its
`schedule_arguments`."""
