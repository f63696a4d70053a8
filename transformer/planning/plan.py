"""The plan of a run: what its compiled train step needs and takes on described or real devices."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from transformer.layers.attention.kernels import logging_kernels
from transformer.planning.hardware import Chip, chip_of
from transformer.planning.hlo import Program
from transformer.planning.memory import Memory, memory
from transformer.planning.schedule import Moved, Schedule, schedule
from transformer.training.extras.compiler_options import check_compiler_options
from transformer.training.logging.throughput import peak_of_kind, run_flops_per_token, sizes_of
from transformer.training.run import Run


@dataclasses.dataclass(frozen=True)
class Plan:
    """Memory and time of one train step on each device.

    `model_flops` are those of the model on one device, as MFU counts them (see `train_flops_per_token`):
    without rematerialisation, and with attention to all tokens of a row, also where a causal kernel leaves
    out half of it; so they may be more than are executed. `limit`
    is the memory of a device that JAX may use, or 0 if that is not known; so are all times. `attention` says
    which kernels attention has.
    """

    devices: int
    kind: str
    mesh: dict[str, int]
    parameters: int
    tokens: int
    memory: Memory
    limit: float
    schedule: Schedule
    model_flops: float
    peak: float
    efficiency: float
    attention: str

    @property
    def fits(self) -> bool:
        """Whether the memory of a device is enough, if it is known."""
        return not self.limit or self.memory.total <= self.limit

    @property
    def seconds(self) -> float:
        """The estimated time of a step."""
        return self.schedule.seconds / self.efficiency

    @property
    def mfu(self) -> float:
        """The estimated model FLOPs utilisation."""
        return self.model_flops / (self.peak * self.seconds) if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Estimated, of all devices together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def cost(self, price: float) -> float:
        """The price of 10^9 tokens, at a price of one device for an hour."""
        return price * self.devices * 1e9 / self.tokens_per_second / 3600 if self.seconds else 0.0

    def values(self, price: float) -> dict[str, Any]:
        """The plan as JSON: sizes in bytes, times in seconds."""
        more = {"fits": self.fits, "seconds": self.seconds, "bound": self.schedule.bound, "mfu": self.mfu}
        more |= {"tokens_per_second": self.tokens_per_second, "memory_total": self.memory.total}
        if price:
            more["cost_per_billion_tokens"] = self.cost(price)
        return dataclasses.asdict(self) | more


class TooLarge(Exception):
    """The compiler found no program that fits; the text says by how much."""


def make_plan(run: Run, efficiency: float | None = None) -> Plan:
    """Compiles the train step of a run for its devices. `efficiency` is the share of the data sheet's rates
    that is assumed to be reached; None: that of the chip.

    Raises:
      TooLarge: it does not fit (TPUs; for GPUs it is compiled all the same).
    """
    check_compiler_options(run.compiler_options, run.mesh)
    attention: list[str] = []
    try:
        with logging_kernels(attention.append):
            compiled = run.compiled()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w)", str(error))
        raise TooLarge(f"{used[1]} of {used[2]}" if used else "out of memory") from None
    devices = [*run.mesh.devices.flat]
    chip, tokens = chip_of(devices), run.config.train.batch_size * run.experiment.tokens_per_example
    if chip and efficiency:
        chip = dataclasses.replace(chip, efficiency=efficiency)
    program = Program.read(compiled.as_text() or "")
    return Plan(
        devices=len(devices),
        kind=devices[0].device_kind,
        mesh={axis: size for axis, size in run.mesh.shape.items() if size > 1},
        parameters=sum(sizes_of(run.abstract.params).values()),
        tokens=tokens,
        memory=memory(run, compiled),
        limit=chip.usable if chip else 0.0,
        schedule=schedule(program, chip, devices, attention_flops(run)),
        model_flops=run_flops_per_token(run) * tokens / len(devices),
        peak=peak(run, chip),
        efficiency=chip.efficiency if chip else efficiency or 1.0,
        attention="\n".join(dict.fromkeys(attention)),
    )


def peak(run: Run, chip: Chip | None) -> float:
    """FLOP/s of a device for the products of a run; 0 if not known."""
    return peak_of_kind(chip.name, run.experiment.config.model.dtype) if chip else 0.0


def attention_flops(run: Run) -> float:
    """FLOPs of one forward pass of all attention over keys, on each device: a third of those of training
    where all parameters are empty. Kernels leave out the masked half of a language model's full attention."""
    experiment: Any = run.experiment
    empty = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((0,), leaf.dtype), run.abstract.params)
    tokens = run.config.train.batch_size * experiment.tokens_per_example
    half = False
    if experiment.continues:
        mixers = experiment.config.model.stack(causal=True).mixers
        half = all(mixer.pattern is None for mixer in mixers)
    return experiment.flops_per_token(empty) / 3 * tokens / run.mesh.size / (2 if half else 1)


def lines(plan: Plan, price: float = 0.0) -> Iterator[str]:
    """The plan as tables. GB are 10^9 bytes, MB 10^6."""
    size, gb = _unit(plan.memory.total)
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items()) or "one device"
    yield f"{plan.devices} x {plan.kind}, mesh {mesh}"
    yield f"{plan.parameters:,} parameters, {plan.tokens:,} tokens a step"
    if plan.attention:
        yield plan.attention
    yield ""
    yield f"memory per device          {gb}B"
    for name, nbytes in dataclasses.asdict(plan.memory).items():
        yield f"  {name:16} {nbytes / size:10.2f}"
    yield f"  {'total':16} {plan.memory.total / size:10.2f}{_against(plan)}"
    yield ""
    yield from _times(plan)
    yield from _network(plan.schedule.moved)
    if plan.seconds:
        yield ""
        mfu = f"MFU {plan.mfu:.1%} (attention to all tokens, as PaLM counts it)"
        yield f"{plan.tokens_per_second:,.0f} tokens/s, {mfu}"
    if plan.seconds and price:
        yield f"{plan.cost(price):,.2f} for 10^9 tokens, at {price:g} for a device and hour"


def _against(plan: Plan) -> str:
    if not plan.limit:
        return ""
    size, _ = _unit(plan.memory.total)
    left = (plan.limit - plan.memory.total) / size
    fits = f"fits, {left:,.2f} left" if left >= 0 else f"DOES NOT FIT, {-left:,.2f} too much"
    return f" of {plan.limit / size:,.2f}: {fits}"


def _unit(largest: float, prefixes: str = "GM") -> tuple[float, str]:
    """The unit of a column of numbers, and its prefix: the first of which there is a tenth."""
    sizes = {"T": 1e12, "G": 1e9, "M": 1e6}
    prefix = next((prefix for prefix in prefixes if largest >= 0.1 * sizes[prefix]), "M")
    return sizes[prefix], prefix


def _network(rows: Sequence[Moved]) -> Iterator[str]:
    if not rows:
        return
    size, gb = _unit(max(row.size for row in rows))
    yield ""
    yield f"network, per device and step {'':5}among       {gb}B  {gb}B sent       ms   hidden"
    for row in rows:
        hidden = f"{row.hidden / row.seconds:8.0%}" if row.seconds else f"{'':8}"
        sizes = f"{row.size / size:8.2f} {row.sent / size:8.2f} {row.seconds * 1e3:8.2f}"
        yield f"  {row.operation:20} {row.link:8} {row.ways:8} {sizes} {hidden}"


def _times(plan: Plan) -> Iterator[str]:
    schedule = plan.schedule
    unit, tera = _unit(schedule.flops, "TGM")
    size, gb = _unit(schedule.traffic)
    counted = f"; MFU counts {plan.model_flops / unit:.2f}" if plan.model_flops else ""
    flops, traffic = (
        f"{schedule.flops / unit:.2f} {tera}FLOP",
        f"{schedule.traffic / size:.1f} {gb}B read and written",
    )
    yield f"{flops} per device and step{counted}; {traffic}"
    if not plan.seconds:
        yield f"times are not known: {plan.kind} is not in the table of transformer/planning/hardware.py"
        return
    parts = {
        "products": schedule.products,
        "memory": schedule.memory,
        "waiting for network": schedule.exposed,
    }
    yield f"time of a step             ms  (at {plan.efficiency:.0%} of the data sheet's rates)"
    for name, seconds in parts.items():
        yield f"  {name:19} {seconds / plan.efficiency * 1e3:7.1f}"
    yield f"  {'total':19} {plan.seconds * 1e3:7.1f}  bound by {schedule.bound}"
