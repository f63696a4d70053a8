"""Compiled programs as data: the text of XLA's HLO, read into computations of instructions.

Of each instruction it tells the bytes of its result, the FLOPs of its products, the bytes that it reads and
writes, and how often a loop runs.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from transformer.planning.hlo_types import in_memory, kind_of, nbytes, shapes, top_level

FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "iota"}
FREE |= {"replica-id", "opt-barrier", "add-dependency", "send", "recv"}
"""Instructions that move nothing."""

CALLS = ("while", "call", "conditional")
"""Instructions that run another computation of the program, one instruction after another."""

IN_PARTS = ("dynamic-slice", "dynamic-update-slice")
"""Instructions that read or write a part of their first operand."""

FUSIONS = ("fusion", "fusion-start")
"""Fusions, and those that a GPU runs beside what follows them, until a `fusion-done`."""

PASSED_ON = ("parameter", "all-gather", "reduce-scatter", "all-reduce", "collective-permute")
"""Instructions whose results a fusion may have among its own without writing them: on TPUs an asynchronous
collective is passed from fusion to fusion."""


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """`%name = result opcode(operands), attributes`, where operands are names in the same computation."""

    name: str
    result: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def attribute(self, pattern: str) -> str:
        """The first group of a pattern in the attributes, or ""."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""

    def numbers(self, attribute: str) -> list[int]:
        """The numbers of `attribute={1,2}`."""
        return [int(n) for n in self.attribute(rf"\b{attribute}=\{{([\d,]*)\}}").split(",") if n]

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, or of its first element."""
        return shapes(self.result)[0]

    @property
    def written(self) -> str:
        """The type of what it writes: of an asynchronous fusion, whose result is (operands, results, state),
        the results."""
        return top_level(self.result)[1] if self.opcode == "fusion-start" else self.result

    @property
    def of_cublas(self) -> bool:
        """Whether it is a matrix product that a GPU's library computes: XLA chooses among these and its own
        where it can time them on the device."""
        return self.opcode == "custom-call" and 'custom_call_target="__cublas' in self.attributes

    @property
    def allocates(self) -> bool:
        """Whether it is memory that nothing is written to yet."""
        return self.opcode == "custom-call" and 'custom_call_target="AllocateBuffer"' in self.attributes

    @functools.cached_property
    def called(self) -> str:
        """The computation of a fusion or call, or the body of a loop, or ""."""
        return self.attribute(r"\b(?:calls|to_apply|body)=%?([\w.-]+)")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A compiled module: its computations by name, each in the order in which it runs."""

    computations: Mapping[str, list[Instruction]]
    entry: str

    @classmethod
    def read(cls, text: str) -> "Program":
        """The program in the text by `compiled.as_text()`."""
        computations: dict[str, list[Instruction]] = {}
        lines: list[Instruction] = []
        entry = ""
        for line in text.splitlines():
            if head := re.match(r"(ENTRY )?%?([\w.-]+) (?:\(.*)?\{$", line):
                lines = computations[head[2]] = []
                entry = head[2] if head[1] else entry
            elif " = " in line and (instruction := _instruction(line)):
                lines.append(instruction)
        return cls(computations, entry)

    def named(self, computation: str) -> dict[str, Instruction]:
        """The instructions of a computation by name."""
        if computation not in self._named:
            instructions = self.computations.get(computation, ())
            self._named[computation] = {instruction.name: instruction for instruction in instructions}
        return self._named[computation]

    @functools.cached_property
    def _named(self) -> dict[str, dict[str, Instruction]]:
        return {}

    def inside(self, instruction: Instruction) -> list[Instruction]:
        """The instructions of the computation that it calls."""
        return self.computations.get(instruction.called, [])

    def body(self, call: Instruction) -> tuple[str, int]:
        """The computation that one of `CALLS` runs, and how often; of several branches the first."""
        if call.opcode == "conditional":
            branches = re.findall(r"%?([\w.-]+)", call.attribute(r"branch_computations=\{([^}]*)\}"))
            return (branches[0] if branches else ""), 1
        return call.called, self.trips(call) if call.opcode == "while" else 1

    def trips(self, loop: Instruction) -> int:
        """The number of trips of a loop: known to XLA, or the largest constant of its condition."""
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        condition = self.computations.get(loop.attribute(r"condition=%?([\w.-]+)"), [])
        constants = [instruction.operands[0] for instruction in condition if instruction.opcode == "constant"]
        return max([int(n) for n in constants if n.isdecimal()], default=1)

    def flops(self, computation: str, instruction: Instruction) -> dict[str, float]:
        """The FLOPs of its products, by the type of what is multiplied; those of the computation that it
        calls, but not of loops."""
        flops_by_type: dict[str, float] = {}
        if instruction.opcode in (*FUSIONS, "call", "async-start", "custom-call"):
            for nested in self.inside(instruction):
                for kind, number in self.flops(instruction.called, nested).items():
                    flops_by_type[kind] = flops_by_type.get(kind, 0) + number
        elif instruction.opcode in ("dot", "convolution"):
            left, right = (self.named(computation)[name] for name in instruction.operands[:2])
            count = _dot_flops if instruction.opcode == "dot" else _convolution_flops
            flops_by_type[kind_of(left.result)] = count(instruction, left.shape, right.shape)
        if instruction.of_cublas:
            left = self.named(computation)[instruction.operands[0]]
            axes = instruction.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
            summed = math.prod(left.shape[int(axis)] for axis in re.findall(r"\d+", axes))
            flops_by_type[kind_of(left.result)] = 2.0 * math.prod(instruction.shape) * summed
        return flops_by_type

    def traffic(self, computation: str, instruction: Instruction) -> int:
        """Bytes that an instruction reads from and writes to the memory of the device.

        Where a fusion only slices an operand, the slices are read; where it updates a part of an operand, the
        part is written.
        """
        names = self.named(computation)
        if instruction.opcode in FREE or instruction.opcode.endswith("-done") or instruction.allocates:
            return 0
        if instruction.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * in_memory(instruction.result)
        if instruction.opcode in ("copy-start", "slice-start"):  # between the memory and the chip
            ends = top_level(instruction.result)[:2]
            return min(map(nbytes, ends)) * sum(in_memory(end) > 0 for end in ends)
        operands = [names[name] for name in instruction.operands if name in names]
        if instruction.opcode in FUSIONS:
            return self._fusion_traffic(instruction, operands)
        if instruction.opcode.endswith("-start"):
            return in_memory(instruction.result)
        if instruction.of_cublas and instruction.result.startswith("("):  # the last one is space to work in
            result = "".join(top_level(instruction.result)[:-1])
            return in_memory(result) + sum(in_memory(operand.result) for operand in operands)
        if instruction.opcode in ("dynamic-update-slice", "scatter") and len(operands) > 1:
            return 2 * in_memory(operands[-1 if instruction.opcode == "scatter" else 1].result)
        return in_memory(instruction.result) + sum(in_memory(operand.result) for operand in operands)

    def _fusion_traffic(self, fusion: Instruction, operands: list[Instruction]) -> int:
        """The bytes of operands and results, but for what is only passed on, sliced or updated in place."""
        inside, by_name, users = self.inside(fusion), self.named(fusion.called), self._users(fusion.called)
        parameters = {nested.operands[0]: nested.name for nested in inside if nested.opcode == "parameter"}
        results = inside[-1].operands if inside and inside[-1].opcode == "tuple" else ()
        passed_on = [by_name[name] for name in results if by_name[name].opcode in PASSED_ON]
        total = in_memory(fusion.written) - sum(in_memory(nested.result) for nested in passed_on)
        for number, operand in enumerate(operands):
            uses = _uses(users, parameters.get(str(number), ""))
            sliced = [nested for nested, place in uses if nested.opcode == "dynamic-slice" and place == 0]
            whole = [
                nested
                for nested, place in uses
                if not ((nested.opcode in IN_PARTS and place == 0) or nested.opcode in (*PASSED_ON, "tuple"))
            ]
            if whole or not uses:
                total += in_memory(operand.result)
            else:
                total += min(in_memory(operand.result), sum(nbytes(nested.result) for nested in sliced))
        for nested in inside:
            if nested.opcode == "dynamic-update-slice":
                total += nbytes(by_name[nested.operands[1]].result) - nbytes(nested.result)
        return max(0, total)

    def _users(self, computation: str) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {}
        for instruction in self.computations.get(computation, ()):
            for name in instruction.operands:
                users.setdefault(name, []).append(instruction)
        return users


def _uses(users: Mapping[str, list[Instruction]], name: str) -> list[tuple[Instruction, int]]:
    """The instructions that use a value, also through bitcasts, each with its place among the operands."""
    uses: list[tuple[Instruction, int]] = []
    for user in users.get(name, []):
        through = user.opcode == "bitcast"
        uses += _uses(users, user.name) if through else [(user, user.operands.index(name))]
    return uses


def _instruction(line: str) -> Instruction | None:
    name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    rest = re.sub(r"/\*index=\d+\*/", "", rest)
    end = _closing(rest) if rest.startswith("(") else rest.find(" ")
    result, rest = rest[:end], rest[end:].lstrip()
    opcode, bracket, _ = rest.partition("(")
    if not bracket or not re.fullmatch(r"[a-z][\w-]*", opcode):
        return None
    end = _closing(rest[len(opcode) :]) + len(opcode)
    listed = rest[len(opcode) + 1 : end - 1]
    operands = tuple(text.split()[-1].strip("()%") for text in top_level(f"({listed})") if text.strip("()"))
    if opcode in ("parameter", "constant"):
        operands = (listed,)
    return Instruction(name.lstrip("%"), result, opcode, operands, rest[end:])


def _closing(text: str) -> int:
    """The place after the bracket that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == ")":
            return place + 1
    return len(text)


def _dot_flops(dot: Instruction, left: tuple[int, ...], _: tuple[int, ...]) -> float:
    summed = math.prod(left[axis] for axis in dot.numbers("lhs_contracting_dims"))
    return 2.0 * math.prod(dot.shape) * summed


def _convolution_flops(convolution: Instruction, left: tuple[int, ...], right: tuple[int, ...]) -> float:
    """2 x (batch) x (features out) x (features in) x (pairs of an output and a kernel place that meet an
    input); products with batch axes are such convolutions on TPUs."""
    labels = (
        convolution.attribute(r"dim_labels=([\w?]+)_"),
        convolution.attribute(r"dim_labels=[\w?]+_([\w?]+)->"),
    )
    (b, f), (i, o) = (
        (labels[0].index("b"), labels[0].index("f")),
        (labels[1].index("i"), labels[1].index("o")),
    )
    pairs = 1.0
    windows = dict(re.findall(r"(\w+)=([\dx_-]+)", convolution.attribute(r"window=\{([^}]*)\}")))
    for axis, place in enumerate(sorted(c for c in labels[0] if c.isdigit())):
        size_in, kernel = left[labels[0].index(place)], right[labels[1].index(place)]
        pairs *= _meetings(size_in, kernel, {name: sizes.split("x")[axis] for name, sizes in windows.items()})
    groups = int(convolution.attribute(r"batch_group_count=(\d+)") or 1)
    return 2.0 * left[b] / groups * right[o] * right[i] * pairs if f != b else 0.0


def _meetings(size: int, kernel: int, window: Mapping[str, str]) -> int:
    """Pairs of an output place and a kernel place over an input that is neither padding nor a hole."""
    low, _, high = window.get("pad", "0_0").partition("_")
    stride, hole = int(window.get("stride", 1)), int(window.get("lhs_dilate", 1))
    step, span = int(window.get("rhs_dilate", 1)), (size - 1) * int(window.get("lhs_dilate", 1)) + 1
    outputs = (span + int(low) + int(high) - ((kernel - 1) * step + 1)) // stride + 1
    starts = np.arange(max(0, outputs)) * stride - int(low)
    total = 0
    for place in range(kernel):
        at = starts + place * step
        total += int(np.sum((at >= 0) & (at < span) & (at % hole == 0)))
    return total


def walk(program: Program, computation: str, times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
    """(computation, instruction, times that it runs) for all instructions that run one after another, those
    of loops and calls among them."""
    for instruction in program.computations.get(computation, ()):
        if instruction.opcode in CALLS:
            body, trips = program.body(instruction)
            yield from walk(program, body, times * trips)
        else:
            yield computation, instruction, times
