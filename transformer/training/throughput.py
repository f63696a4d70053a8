"""Throughput and utilisation: a meter of steps, model FLOPs per token, peak FLOP/s of known devices."""

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence

import jax

from transformer.errors import UserError
from transformer.training.metrics import Sum, merge
from transformer.training.schedules import Schedule
from transformer.training.state import Params


@dataclasses.dataclass(kw_only=True)
class Meter:
    """Turns the metrics of steps into the values of a window, `{"train/loss": ...}`.

    Time counts from the end of one step to the end of another, without what `pause` encloses (evaluation,
    saving) and without the first step, which is compiled: its own time, from `started`
    (`time.perf_counter()`), is `train/seconds_to_first_step`. `train/input_wait` is the share of the time
    in which the host waited for a batch. Skipped steps are counted, and left out of every mean.

    Without the model's FLOPs or the devices' there is no
    `train/mfu` = tokens/s x FLOPs per token / peak FLOP/s.
    """

    tokens_per_step: int  # of the global batch
    learning_rate: Schedule  # by the count of updates made
    max_skipped: int  # how many steps in a row may be skipped (0: any number)
    skipped: int = 0  # steps skipped so far, before this run as the restored state says
    started: float = dataclasses.field(default_factory=time.perf_counter)
    flops_per_token: float | None = None  # of the model
    peak_flops: float | None = None  # of all devices together

    def __post_init__(self) -> None:
        self.latest: dict[str, float] = {}
        self._in_a_row = self._step = self._steps = 0
        self._once: dict[str, float] = {}
        self._first = True
        self._sums: dict[str, Sum] = {}
        self._reset(self.started)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for the next batch."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Around what is not training."""
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start

    def read(self, step: int, metrics: Mapping[str, Sum]) -> None:
        """Waits for the end of `step` and takes its metrics.

        Raises:
          UserError: too many steps in a row had a gradient that is not finite.
        """
        host = jax.tree.map(float, jax.device_get(dict(metrics)))
        now = time.perf_counter()
        self._step = step
        if self._first:
            self._first = False
            self._once["train/seconds_to_first_step"] = now - self.started
            self._reset(now)
        else:
            self._steps += 1
        self._end = now
        if host.pop("skipped_steps", Sum(0.0, 1.0)).total:
            self.skipped += 1
            self._in_a_row += 1
            if self._in_a_row == self.max_skipped:
                raise UserError(
                    f"train.max_skipped: the gradient was not finite in {self._in_a_row} steps in a row, "
                    f"up to step {step}; a lower optimizer.learning_rate or a longer warm-up may keep it so"
                )
            return
        self._in_a_row = 0
        self._sums = merge([self._sums, host])
        self.latest |= {f"train/{name}": float(value.mean) for name, value in host.items()}

    def window(self) -> dict[str, float]:
        """The values since the last call, up to the last step read."""
        values = {f"train/{name}": float(value.mean) for name, value in self._sums.items()}
        updates = max(0, self._step - 1 - self.skipped)
        values["train/learning_rate"] = float(self.learning_rate(updates))
        values["train/skipped_steps"] = self.skipped
        elapsed = self._end - self._start - self._paused
        if self._steps and elapsed > 0:
            rate = self._steps * self.tokens_per_step / elapsed
            values["train/tokens_per_second"] = rate
            values["train/seconds_per_step"] = elapsed / self._steps
            values["train/input_wait"] = min(1.0, self._waited / elapsed)
            if self.flops_per_token and self.peak_flops:
                values["train/mfu"] = rate * (self.flops_per_token / self.peak_flops)
        values |= self._once
        self.latest |= values
        self._once, self._sums = {}, {}
        self._reset(self._end)
        return values

    def _reset(self, now: float) -> None:
        self._start = self._end = now
        self._paused = self._waited = 0.0
        self._steps = 0


PEAK_FLOPS: dict[str, tuple[float, float]] = {
    # NVIDIA: dense tensor-core rates of bfloat16 and of TF32, which is what JAX multiplies float32 with.
    "NVIDIA A100": (312e12, 156e12),  # A100 data sheet, 2021
    "NVIDIA H100": (989.4e12, 494.7e12),  # H100 architecture white paper, table 2, SXM5
    "NVIDIA H100 PCIe": (756e12, 378e12),  # same, PCIe
    "NVIDIA H200": (989.4e12, 494.7e12),  # H200 data sheet; the H100's chip
    "NVIDIA B200": (2250e12, 1125e12),  # HGX B200 data sheet, per GPU
    "NVIDIA GB200": (2500e12, 1250e12),  # GB200 NVL72 data sheet, per GPU
    "NVIDIA GeForce RTX 3090": (71e12, 35.6e12),  # GA102 architecture white paper, appendix A
    "NVIDIA GeForce RTX 4090": (165.2e12, 82.6e12),  # Ada architecture white paper, appendix A
    # Google: cloud.google.com/tpu/docs, system architecture, per chip. The default precision multiplies
    # float32 in one bfloat16 pass, at the same rate.
    "TPU v4": (275e12, 275e12),
    "TPU v5": (459e12, 459e12),  # v5p
    "TPU v5p": (459e12, 459e12),
    "TPU v5 lite": (197e12, 197e12),  # v5e
    "TPU v5e": (197e12, 197e12),
    "TPU v6 lite": (918e12, 918e12),  # v6e
    "TPU v6e": (918e12, 918e12),
}
"""Beginning of `device_kind` -> peak FLOP/s of one device in (bfloat16, float32); the longest one counts."""


def peak_flops(devices: Sequence[jax.Device], dtype: str) -> float | None:
    """Peak FLOP/s of all `devices` together for products in `dtype`; None where it is not known (CPUs, say).
    The devices are of one kind, and may be described and not there."""
    device_kind = devices[0].device_kind
    known = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
    if not known:
        return None
    bfloat16, float32 = PEAK_FLOPS[max(known, key=len)]
    return len(devices) * (bfloat16 if dtype == "bfloat16" else float32)


READS = re.compile(r"encoder|attention/key/|.*cross_attention/(key|value|latent|rotary_key)/")
"""How the names of an encoder-decoder's parameters begin that the tokens of a source are multiplied by."""


def matmul_parameters(params: Params) -> int:
    """Number of parameters that tokens are multiplied by: the kernels, and the embedding table where it is
    the output matrix too (there is no `unembedding`); looking a row up costs nothing."""
    sizes = _sizes(params)
    kernels = sum(size for name, size in sizes.items() if name.endswith("kernel"))
    tied = not any(name.startswith("unembedding/") for name in sizes)
    return kernels + (sizes.get("embedding/table", 0) if tied else 0)


def train_flops_per_token(parameters: int, num_layers: int, attention_width: int, length: int) -> float:
    """6 N + 12 n (h k) t: FLOPs that one trained token needs, forward and backward.

    N `matmul_parameters`, n layers, h k = heads x head width, t tokens of context. What is recomputed is not
    counted, nor is it deducted that half of a causal attention matrix is masked: the convention of Chowdhery
    et al. 2022, "PaLM", appendix B, by which published utilisations are comparable.
    """
    return 6.0 * parameters + 12.0 * num_layers * attention_width * length


def pair_flops_per_token(
    params: Params, layers: tuple[int, int, int], width: int, source_length: int, target_length: int
) -> float:
    """6 (N_t + N_s s / t) + 12 h k (n_t t + n_s s^2 / t + n_c s): FLOPs of an encoder-decoder for one trained
    token of a target, in a row of t, whose share of a row of s tokens of sources is s / t.

    N_s is the number of parameters that a source's tokens are multiplied by (`READS`), N_t that of all
    others; `layers`, n_s n_t n_c, are those in which sources attend to themselves, targets to themselves,
    and targets to sources; `width` is h k. What is counted of attention is as in `train_flops_per_token`.
    """
    read = sum(size for name, size in _sizes(params).items() if name.endswith("kernel") and READS.match(name))
    shares = source_length / target_length
    of_sources, of_targets, across = layers
    attended = of_targets * target_length + (of_sources * shares + across) * source_length
    return 6.0 * (matmul_parameters(params) - read + read * shares) + 12.0 * width * attended


def _sizes(params: Params) -> dict[str, int]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
