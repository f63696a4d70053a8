"""The search for a mesh, rematerialisation, microbatches and parts of the vocabulary: all are estimated, the
best are compiled."""

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.planning.collectives import Collective
from transformer.planning.hardware import Chip, chip_of, duration
from transformer.planning.memory import held, rows_apart, saved_bytes
from transformer.planning.plan import Plan, TooLarge, make_plan, peak
from transformer.training.logging.throughput import run_flops_per_token, sizes_of
from transformer.training.losses.logits_memory import LogitsConfig
from transformer.training.parallel import AXES
from transformer.training.run import Run

Overrides = Sequence[tuple[str, str]]
Planned = Callable[[Overrides], Run]
"""The run under config keys, on the devices to plan for."""

REMATS = ("none", "dots", "attention", "full")
"""Values of `model.remat` to try."""

RECOMPUTED = {"none": 0.0, "dots": 0.12, "attention": 0.28, "full": 1 / 3}
"""Value of `model.remat` -> FLOPs of the second forward pass in those of the step without it: with `full` a
third, with `attention` all but those of attention, with `dots` as in the compiled 8B model."""

PARTS = (1, 2, 4, 8)
"""Microbatches to try."""

LOGITS = (1, 8)
"""Values of `loss.vocab_parts` to try, where a run has this key."""

FILLED = 0.85
"""The share of the memory that a candidate may be expected to need; the rest is working memory."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Config keys, and the memory (bytes) and time (seconds) that are expected with them on each device."""

    keys: dict[str, str]
    memory: float
    seconds: float

    @property
    def flags(self) -> str:
        """The keys as flags of the command line."""
        return " ".join(f"--config.{key}={value}" for key, value in self.keys.items())


def candidates(planned: Planned, overrides: Overrides) -> list[Candidate]:
    """All meshes over `data`, `fsdp` and `tensor`, each with every rematerialisation and the fewest
    microbatches and parts of the vocabulary with which it is expected to fit, fastest first. Other axes and
    keys that are given stay.

    Raises:
      UserError: devices whose rates are not known, or no such mesh can be.
    """
    all_left = {"data": "1", "fsdp": "1", "tensor": "-1"}  # divides any batch
    first: Any = planned([*overrides, *_mesh_keys(all_left).items()])
    devices, left = [*first.mesh.devices.flat], first.mesh.shape["tensor"]
    chip = chip_of(devices)
    if chip is None:
        raise UserError(f"--search: the rates of {devices[0].device_kind} are not known; give --topology")
    fixed = dict(overrides)
    remats = [first.config.model.remat] if "model.remat" in fixed else REMATS
    parts = [first.config.parallel.microbatches] if "parallel.microbatches" in fixed else PARTS
    has_logits = isinstance(vars(first.config).get("loss"), LogitsConfig) and "loss.vocab_parts" not in fixed
    logits = [{"loss.vocab_parts": str(number)} for number in LOGITS] if has_logits else [{}]

    whole: dict[Any, int] = {}
    fitting, refused = [], "none has the sizes that are given"
    for sizes in meshes(left):
        mesh = _mesh_keys(sizes)
        if any(fixed.get(key, value) not in (value, "-1") for key, value in mesh.items()):
            continue
        try:
            run = planned([*overrides, *mesh.items(), ("parallel.microbatches", str(parts[0]))])
            _ = run.abstract
        except UserError as error:  # the mesh divides neither the batch nor all parameters
            refused = str(error)
            continue
        if not whole:
            once = [*overrides, *mesh.items(), ("parallel.microbatches", "1")]
            for remat, some in itertools.product(remats, logits):
                with contextlib.suppress(UserError):  # the vocabulary does not have this many equal parts
                    run_of_one_batch = planned([*once, ("model.remat", remat), *some.items()])
                    whole[remat, *some.values()] = saved_bytes(run_of_one_batch)
        rows = run.config.train.batch_size // rows_apart(run.mesh)
        for remat in remats:
            for part, some in itertools.product(parts, logits):
                saved = whole.get((remat, *some.values()))
                if saved is None or rows % part:
                    continue
                keys = mesh | {"model.remat": remat, "parallel.microbatches": str(part)} | some
                candidate = estimated(run, keys, saved / part, chip)
                if candidate.memory < FILLED * chip.usable:
                    fitting.append(candidate)
                    break
    if not whole:
        raise UserError(f"--search: no mesh of data x fsdp x tensor over {left} devices can be: {refused}")
    return sorted(fitting, key=operator.attrgetter("seconds"))


def _mesh_keys(sizes: Mapping[str, Any]) -> dict[str, str]:
    return {f"parallel.mesh.{axis}": str(size) for axis, size in sizes.items()}


def meshes(devices: int) -> Iterator[dict[str, int]]:
    """All ways to write the number of devices as data x fsdp x tensor, with at most 8 for tensor."""
    for tensor in (1, 2, 4, 8):
        for fsdp in range(1, devices + 1):
            if devices % (tensor * fsdp) == 0:
                yield {"data": devices // (tensor * fsdp), "fsdp": fsdp, "tensor": tensor}


def estimated(run: Run, keys: dict[str, str], saved: float, chip: Chip) -> Candidate:
    """The memory and time of a run under `keys`, without compiling it; it has their mesh.

    Memory is state, gradients and what the backward pass needs; time that of all products at the full rate,
    of writing and reading what is saved, and of the collectives, as if nothing overlapped: each microbatch
    gathers the parameters twice in bfloat16 and reduces float32 gradients over `fsdp`, once more over `data`,
    and adds the parts of four products of each layer over `tensor`.
    """
    config: Any = run.config
    mesh, parts, remat = run.mesh, int(keys["parallel.microbatches"]), keys["model.remat"]
    params = run.abstract.params
    saved_here = saved / rows_apart(mesh)
    memory = 2 * held(params) + held(run.abstract.opt_state) + saved_here
    tokens = config.train.batch_size * run.experiment.tokens_per_example
    model_flops = run_flops_per_token(run) * tokens / mesh.size
    seconds = model_flops * (1 + RECOMPUTED[remat]) / peak(run, chip)
    seconds += 2 * saved_here * parts / chip.bandwidth
    whole = sum(sizes_of(params).values()) / mesh.shape["tensor"]
    states = tokens // rows_apart(mesh) * config.model.d_model * 2
    moved = [
        ("fsdp", "all-gather", 2 * 2 * whole * parts),
        ("fsdp", "reduce-scatter", 4 * whole * parts),
        ("data", "all-reduce", 4 * whole / mesh.shape["fsdp"]),
        ("tensor", "all-reduce", 4 * config.model.num_layers * states),
    ]
    return Candidate(keys, memory, seconds + sum(_seconds(run, chip, *product) for product in moved))


def _seconds(run: Run, chip: Chip, axis: str, operation: str, size: float) -> float:
    """The time of a collective over an axis of the mesh."""
    shape = [run.mesh.shape[name] for name in AXES]
    if run.mesh.shape[axis] == 1:
        return 0.0
    places = np.moveaxis(np.arange(run.mesh.size).reshape(shape), AXES.index(axis), -1)
    groups = places.reshape(-1, run.mesh.shape[axis])
    return duration(Collective(operation, int(size), groups[:1]), chip, [*run.mesh.devices.flat])[1]


def ranking(
    planned: Planned, overrides: Overrides, most: int, efficiency: float | None
) -> Iterator[tuple[Candidate, Plan | None, str]]:
    """At most `most` candidates, as they are compiled: their plan, or None and why there is none. Half of
    them are ways to rematerialise on the mesh that is expected to be best, half other meshes with the best
    way."""
    ranked = candidates(planned, overrides)
    tried: list[tuple[Candidate, Plan]] = []

    def way(candidate: Candidate) -> list[tuple[str, str]]:
        return [(key, value) for key, value in candidate.keys.items() if "mesh" not in key]

    def mesh(candidate: Candidate) -> list[tuple[str, str]]:
        return [(key, value) for key, value in candidate.keys.items() if "mesh" in key]

    def compiled(some: Sequence[Candidate]) -> Iterator[tuple[Candidate, Plan | None, str]]:
        for candidate in some:
            try:
                plan = make_plan(planned([*overrides, *candidate.keys.items()]), efficiency)
            except TooLarge as error:
                yield candidate, None, f"does not fit: {error}"
                continue
            except UserError as error:  # the mesh does not divide what the step computes
                yield candidate, None, str(error)
                continue
            if plan.fits:
                tried.append((candidate, plan))
            yield candidate, plan, ""

    if not ranked:
        return
    ways = [candidate for candidate in ranked if mesh(candidate) == mesh(ranked[0])][: (most + 1) // 2]
    yield from compiled(ways)
    best = min(tried, key=lambda entry: entry[1].seconds)[0] if tried else ranked[0]
    further = [
        candidate for candidate in ranked if candidate not in ways and way(candidate)[0] == way(best)[0]
    ]
    yield from compiled(further[: most - len(ways)])
