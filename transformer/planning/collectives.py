"""Collective operations of a compiled program: how many bytes they send, and between which devices."""

import dataclasses
import math
import re

import numpy as np

from transformer.planning.hlo import Instruction, Program
from transformer.planning.hlo_types import nbytes, top_level

OPERATIONS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation.

    `size` is in bytes on each device: of the result of an all-gather, of the whole array before a
    reduce-scatter divides it, of the array of the others. `groups` (groups, devices of each) are places in
    the mesh, from 0; of a permute they are the pairs (source, target).
    """

    operation: str
    size: int
    groups: np.ndarray

    @property
    def ways(self) -> int:
        """The number of devices that take part together."""
        return self.groups.shape[1]

    @property
    def sent(self) -> float:
        """Bytes that each device sends in rings: n (k - 1) / k of n bytes over k devices, for an all-reduce
        twice as many, for a permute n."""
        if self.operation.startswith("collective"):
            return float(self.size)
        return (2 if self.operation == "all-reduce" else 1) * self.size * (self.ways - 1) / self.ways


def collective(program: Program, instruction: Instruction, devices: int) -> Collective | None:
    """The collective operation that an instruction is, starts, or holds if it is a fusion; else None."""
    name = instruction.opcode.removesuffix("-start")
    if name in OPERATIONS:
        operation, started = name, instruction.opcode.endswith("-start")
        groups = _groups(instruction.attributes, devices)
        return Collective(operation, _moved(instruction.result, operation, started, groups.shape[1]), groups)
    if instruction.opcode == "send" and (
        kind := instruction.attribute(r'_xla_megascale_transfer_type="(\w+)"')
    ):
        # Between slices of TPUs, each device of one and its fellows of the others.
        slices = instruction.attribute(r'_xla_megascale_target="\{([\d,]+)\}').count(",") + 1
        fellows = np.arange(devices).reshape(slices, -1).T
        return Collective(kind.lower().replace("_", "-"), nbytes(top_level(instruction.result)[0]), fellows)
    if instruction.opcode not in ("fusion", "async-start", "call-start"):
        return None
    inside = [
        nested for part in program.inside(instruction) if (nested := collective(program, part, devices))
    ]
    if not inside:
        return None
    nested = inside[0]
    # On TPUs a fused all-reduce of which each device keeps its part is how a reduce-scatter is written.
    if (
        nested.operation == "all-reduce"
        and "all-reduce-scatter" in instruction.called + instruction.attributes
    ):
        return dataclasses.replace(nested, operation="reduce-scatter")
    return nested


def _moved(result: str, operation: str, started: bool, ways: int) -> int:
    """The bytes of a collective's result, or of a reduce-scatter's operands.

    The result of an operation that is only started is (its operands, its results, ...), but for all-reduce.
    """
    if started and operation != "all-reduce":
        return nbytes(top_level(result)[0 if operation == "reduce-scatter" else 1])
    return nbytes(result) * (ways if operation == "reduce-scatter" else 1)


def _groups(text: str, devices: int) -> np.ndarray:
    """`replica_groups` or `source_target_pairs`, in any of the ways in which they are written."""
    if match := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", text):
        lists = [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match[1])]
        longest = max(map(len, lists))
        return np.array([group for group in lists if len(group) == longest])
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        return _arranged(match[2], match[3]).reshape(_numbers(match[1]))
    if match := re.search(r"replica_groups=mesh\[([^]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", text):
        return _of_mesh(match[1], match[2] or "", match[3])
    return np.arange(devices)[None]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def _arranged(shape: str, order: str | None) -> np.ndarray:
    """The devices of `[8,4]T(1,0)`."""
    sizes = _numbers(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_numbers(order)) if order else devices


def _of_mesh(sizes: str, ids: str, chosen: str) -> np.ndarray:
    """Groups along the axes `chosen` of a mesh "'a'=8,'b'=4"; "'a':(2)4" is the part of size 4 of an axis,
    inside of one of size 2."""
    axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", sizes)}
    parts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    split: list[tuple[str, int, bool]] = []
    for name, size in axes.items():
        own = sorted((int(outer or 1), int(width or size)) for axis, outer, width in parts if axis == name)
        done = 1
        for outer, width in own:
            split += [(name, outer // done, False), (name, width, True)]
            done = outer * width
        split.append((name, size // done, False))
    match = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids)
    devices = _arranged(match[1], match[2]) if match else np.arange(math.prod(axes.values()))
    devices = devices.reshape([size for _, size, _ in split])
    inside = [axis for axis, (_, _, inner) in enumerate(split) if inner]
    outside = [axis for axis, (_, _, inner) in enumerate(split) if not inner]
    ways = math.prod(split[axis][1] for axis in inside)
    return devices.transpose([*outside, *inside]).reshape(-1, ways)
