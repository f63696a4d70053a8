"""The time of a step, from its compiled program: its instructions one after another, as they are scheduled,
and collective operations beside them where they are asynchronous."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from transformer.planning.collectives import Collective, collective
from transformer.planning.hardware import Chip, duration
from transformer.planning.hlo import CALLS, FREE, FUSIONS, Instruction, Program, walk

KERNELS = (
    (r"fmha\w*Backward", 2.5),
    (r"fmha", 1.0),
    (r"splash\w*_dq", 1.5),
    (r"splash\w*_dkv", 2.0),
    (r"splash", 1.0),
)
"""Names of attention kernels -> products of theirs in those of a forward pass, which are two: q k and p v."""

ONCE = r"fmha\w*Backward|splash\w*_dkv"
"""Matches the kernels that run once for each layer and part of a batch."""


@dataclasses.dataclass(frozen=True)
class Moved:
    """All collectives of one operation over one kind of link: times that they run, bytes (see
    `Collective.size`) and bytes sent by each device, seconds, and those of them that computation hides."""

    operation: str
    link: str
    ways: int
    times: int
    size: float
    sent: float
    seconds: float
    hidden: float


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The work of one device in a step, at the full rates of its data sheet.

    `seconds` are `products` + `memory` (instructions that are bound by products, or by reading and writing
    memory) + `exposed` (waiting for the network). Unknown times are 0.
    """

    seconds: float
    products: float
    memory: float
    exposed: float
    flops: float
    traffic: float
    moved: tuple[Moved, ...]

    @property
    def bound(self) -> str:
        """The part that takes most of the time."""
        parts = {"compute": self.products, "memory": self.memory, "interconnect": self.exposed}
        return max(parts, key=lambda name: parts[name])


@dataclasses.dataclass
class _Time:
    """Seconds of a part of the program; collectives as (their group's shape, link) -> a row of `Moved`."""

    products: float = 0.0
    memory: float = 0.0
    exposed: float = 0.0
    flops: float = 0.0
    traffic: float = 0.0
    moved: dict[tuple[str, str, int], list[float]] = dataclasses.field(default_factory=dict)

    @property
    def now(self) -> float:
        return self.products + self.memory + self.exposed

    def add(self, part: "_Time", times: int) -> None:
        for name in ("products", "memory", "exposed", "flops", "traffic"):
            setattr(self, name, getattr(self, name) + times * getattr(part, name))
        for key, row in part.moved.items():
            own = self.moved.setdefault(key, [0.0] * len(row))
            own[:] = [a + times * b for a, b in zip(own, row, strict=True)]


def schedule(program: Program, chip: Chip | None, devices: Sequence[Any], attention_flops: float) -> Schedule:
    """The work of a device in one run of a program on `devices`, in the order of its mesh.

    `attention_flops` are those of the forward pass of all layers' attention on one device, for kernels whose
    products are not in the program.
    """
    kernels = [
        (_label(instruction), times)
        for _, instruction, times in walk(program, program.entry)
        if _is_kernel(instruction)
    ]
    once = sum(times for label, times in kernels if re.search(ONCE, label))
    scheduled = _Scheduler(program, chip, devices, attention_flops / max(1, once)).run(program.entry)
    rows = [
        Moved(operation, link, ways, int(times), size, sent, seconds, max(0.0, seconds - waited))
        for (operation, link, ways), (times, size, sent, seconds, waited) in sorted(scheduled.moved.items())
    ]
    parts = scheduled.products, scheduled.memory, scheduled.exposed, scheduled.flops, scheduled.traffic
    return Schedule(scheduled.now, *parts, tuple(rows))


@dataclasses.dataclass
class _Scheduler:
    program: Program
    chip: Chip | None
    devices: Sequence[Any]
    kernel_flops: float

    def run(self, computation: str, above: frozenset[str] = frozenset()) -> _Time:
        """The time of the instructions of a computation, in order. The channels `above` are under way where
        it is called: they are counted there."""
        time, network = _Time(), 0.0
        under_way: dict[str, tuple[float, tuple[str, str, int]]] = {}

        def wait(name: str) -> None:
            if name in under_way:
                end, key = under_way.pop(name)
                waited = max(0.0, end - time.now)
                time.exposed += waited
                time.moved[key][-1] += waited

        for instruction in self.program.computations.get(computation, ()):
            if instruction.opcode in CALLS:
                body, times = self.program.body(instruction)
                time.add(self.run(body, above | under_way.keys()), times)
                continue
            if instruction.opcode.endswith("-done"):
                started = self.program.named(computation).get(instruction.operands[0])
                wait(_rendezvous(started) if started else "")
                wait(instruction.operands[0])
                continue
            channel = self._channel(instruction)
            known = channel in under_way or channel in above
            moved = None if known else collective(self.program, instruction, len(self.devices))
            if moved is not None:
                link, seconds = self._duration(moved)
                key = (moved.operation, link, moved.ways)
                network = max(network, time.now) + seconds
                row = time.moved.setdefault(key, [0.0] * 5)
                row[:4] = [a + b for a, b in zip(row, (1, moved.size, moved.sent, seconds), strict=False)]
                under_way[channel or instruction.name] = network, key
                if not (channel or instruction.opcode.endswith("-start")):
                    wait(instruction.name)
                    time.traffic += self.program.traffic(computation, instruction)
                    continue
            self._compute(time, computation, instruction)
            if channel and self._ends(instruction):
                wait(channel)
        for name in [*under_way]:
            wait(name)
        return time

    def _compute(self, time: _Time, computation: str, instruction: Instruction) -> None:
        """Adds what an instruction computes, reads and writes. Transfers between a TPU's memory and its chip
        are beside the computation; an asynchronous fusion of a GPU is not: it takes the memory's time from
        what runs beside it."""
        if instruction.opcode in FREE:
            return
        flops = self.program.flops(computation, instruction)
        if _is_kernel(instruction):
            factor = next(factor for name, factor in KERNELS if re.search(name, _label(instruction)))
            flops = {"bf16": factor * self.kernel_flops}
        traffic = self.program.traffic(computation, instruction)
        time.flops += sum(flops.values())
        time.traffic += traffic
        beside = instruction.opcode.endswith("-start") and instruction.opcode not in FUSIONS
        if self.chip is None or beside:
            return
        products = sum(number / self.chip.flops(kind) for kind, number in flops.items())
        memory = traffic / self.chip.bandwidth
        if products >= memory:
            time.products += products
        else:
            time.memory += memory

    def _duration(self, moved: Collective) -> tuple[str, float]:
        return duration(moved, self.chip, self.devices) if self.chip else ("", 0.0)

    def _channel(self, instruction: Instruction) -> str:
        """The channel of a collective that several instructions work on, one after another (on TPUs), or
        ""."""
        if instruction.opcode == "send":
            return _rendezvous(instruction)
        if instruction.opcode != "fusion":
            return ""
        inside = self.program.inside(instruction)
        if (
            not any("AsyncCollective" in part.attributes for part in inside)
            and "async" not in instruction.called
        ):
            return ""
        channels = (part.attribute(r"channel_id=(\d+)") for part in inside)
        return next((f"channel {number}" for number in channels if number), "")

    def _ends(self, instruction: Instruction) -> bool:
        return any("AsyncCollectiveDone" in part.attributes for part in self.program.inside(instruction))


def _is_kernel(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and any(
        re.search(name, _label(instruction)) for name, _ in KERNELS
    )


def _rendezvous(instruction: Instruction) -> str:
    """The name that the send and the receive of a transfer between slices share, or ""."""
    return instruction.attribute(r'_xla_host_transfer_rendezvous="([^"]*)"')


def _label(instruction: Instruction) -> str:
    return instruction.name + " " + instruction.attribute(r'custom_call_target="([^"]*)"')
