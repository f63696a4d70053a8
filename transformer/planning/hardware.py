"""Devices and what joins them: rates by data sheets, descriptions to compile for, times of collectives."""

import dataclasses
import importlib.util
import operator
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.devices import DESCRIBED
from transformer.errors import UserError
from transformer.planning.collectives import Collective
from transformer.training.logging.throughput import peak_of_kind
from transformer.training.topology import slice_of

GB = 10**9

HALVES = {"bf16": "bfloat16", "f16": "float16"}
"""Types of HLO of 16 bits -> names in JAX."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of device: bytes and bytes per second by its data sheet; FLOP/s are in `PEAK_FLOPS`.

    `link` is what a device sends to all GPUs of its host, or to one neighbour in a TPU's torus, in one
    direction; `network` what it sends to other hosts, or other slices of TPUs. `wrapped` is the least size of
    an axis of the torus whose ends are joined. `target` describes a GPU to the compiler, and `capability` is
    its compute capability. `efficiency` is the share of all these rates that a step is taken to reach: an
    assumption unless said otherwise.
    """

    name: str
    memory: float
    bandwidth: float
    link: float
    network: float
    wrapped: int = 0
    target: str = ""
    capability: float = 0.0
    efficiency: float = 0.75

    def flops(self, kind: str) -> float:
        """FLOP/s for products of a type of HLO."""
        return peak_of_kind(self.name, HALVES.get(kind, kind))

    @property
    def usable(self) -> float:
        """The bytes that JAX lets programs use: on GPUs by default three quarters."""
        share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")) if self.target else 1.0
        return share * self.memory


def _target(name: str, memory: int, bandwidth: float, l2: int, cores: int, clock: float, major: int) -> str:
    """XLA's `GpuTargetConfigProto` of a GPU. What is not a parameter is the same for Hopper (H100
    architecture white paper, tables 2 and 5) and Blackwell (CUDA programming guide, compute capabilities)."""
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: 0 feature_extension: ACCELERATED_FEATURES }}
  core_count: {cores} fpus_per_core: 128 clock_rate_ghz: {clock} threads_per_warp: 32
  memory_bandwidth: {int(bandwidth)} device_memory_size: {memory} l2_cache_size: {l2}
  threads_per_block_limit: 1024 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""


def _hopper(name: str, memory: int, bandwidth: float) -> Chip:
    """NVLink 4: 900 GB/s in both directions; one ConnectX-7 of 400 Gbit/s for each GPU, as in a DGX H100.

    Two models reached 52 and 54 % of the rates of one H200 (docs/benchmarks.md, "On a GPU").
    """
    target = _target(name, memory, bandwidth, 52_428_800, 132, 1.98, 9)
    return Chip(name, memory, bandwidth, 450 * GB, 50 * GB, target=target, capability=9.0, efficiency=0.53)


def _blackwell(name: str, memory: int, bandwidth: float, l2: int, cores: int, clock: float) -> Chip:
    """NVLink 5: 1,800 GB/s in both directions (data sheets of HGX B200 and GB200 NVL72); one ConnectX-7 of
    400 Gbit/s for each GPU, as in a DGX B200 and a tray of a DGX GB200.

    What a driver reports of a card (memory, its clock times its width, cache, cores, clock) is that of XLA's
    descriptions: b200 and gb200 in xla/backends/gpu/target_config/specs. None was measured here: the share is
    that of the H200.
    """
    target = _target(name, memory, bandwidth, l2, cores, clock, 10)
    return Chip(name, memory, bandwidth, 900 * GB, 50 * GB, target=target, capability=10.0, efficiency=0.53)


CHIPS: dict[str, Chip] = {
    "h100": _hopper("NVIDIA H100 80GB HBM3", 84_942_979_072, 3352e9),
    "h200": _hopper("NVIDIA H200", 150_754_820_096, 4800e9),
    "b200": _blackwell("NVIDIA B200", 191_514_411_008, 7672e9, 132_644_864, 148, 1.965),
    "gb200": _blackwell("NVIDIA GB200", 197_897_748_480, 7928e9, 135_528_448, 152, 2.062),
    # Google: cloud.google.com/tpu/docs, system architecture of each; memory is what the compiler allows.
    "v5e": Chip("TPU v5 lite", 15.75 * 2**30, 819e9, 50 * GB, 3.125 * GB, 16),
    "v5p": Chip("TPU v5", 95.74 * 2**30, 2765e9, 100 * GB, 6.25 * GB, 4),
    "v6e": Chip("TPU v6 lite", 31.25 * 2**30, 1638e9, 100 * GB, 12.5 * GB, 16),
    # Two devices a chip: each with half of its memory, its bandwidth and its links.
    "tpu7x": Chip("TPU7x", 94.75 * 2**30, 3690e9, 50 * GB, 6.25 * GB, 4),
}
"""Name in a topology -> what it is."""

BETWEEN_DIES = 12
"""The bandwidth between the two devices of a TPU7x chip, relative to `link`: an assumption, that of the six
links of a chip together."""

PROTOCOLS = (
    (6.6e-6, 0.6e-6, 2.7e-6, 0.5),
    (14.0e-6, 1.9e-6, 4.0e-6, 120 / 128),
    (8.4e-6, 3.4e-6, 14.0e-6, 1.0),
)
"""NCCL's ways to send in a ring, LL, LL128 and Simple: seconds before the first step, in each step over
NVLink and over the network, and the share of the rate that is left for data. Source:
`ncclTunerConstantsDefaults` and `ncclTopoTuneModel` of NCCL, src/graph/tuning.cc; not measured here."""

TO_COMPILE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any: without one libtpu complains
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment variables with which TPUs that are not there can be compiled for."""


def prepare(topology: str) -> None:
    """Sets the environment for `described`; call it before JAX looks for devices.

    Raises:
      UserError: no such topology, or the packages to compile for it are not installed.
    """
    name, _, shape = topology.partition(":")
    sizes = r"[1-9]\d*(x[1-9]\d*)"
    if name not in CHIPS or not re.fullmatch(sizes + ("?" if CHIPS[name].target else "{0,2}"), shape):
        known = ", ".join(CHIPS)
        raise UserError(
            f"--topology: {topology!r}; expected one of {known} with a shape: h100:HOSTSxGPUS, v5p:4x4x4"
        )
    package = "jax_cuda13_plugin" if CHIPS[name].target else "libtpu"
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"--topology: to compile for {topology} takes {package}; in an environment of its own, "
            "pip install -r requirements.txt -r requirements-plan.txt"
        )
    os.environ.update(TO_COMPILE)
    jax.config.update("jax_platforms", "cpu")  # what is computed here are constants
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot keep programs of other devices
    if CHIPS[name].target and (nvidia := importlib.util.find_spec("nvidia")):
        # The assembler and libraries of CUDA, from the wheels.
        folder = Path(next(iter(nvidia.submodule_search_locations or [])), "cu13")
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_cuda_data_dir={folder}".strip()


def described(topology: str, slices: int = 1) -> list[Any]:
    """Descriptions of the devices of "h100:8x8" (hosts x GPUs) or of slices of TPUs, "v5p:4x4x4".

    Raises:
      UserError: the compiler knows no such topology.
    """
    from jax.experimental import topologies

    name, _, shape = topology.partition(":")
    chip = CHIPS[name]
    try:
        if not chip.target:
            several = {"num_slices": slices} if slices > 1 else {}
            description = topologies.get_topology_desc(topology_name=topology, platform="tpu", **several)
            return list(description.devices)
        _answer_for_cudnn(chip)
        hosts, _, gpus = shape.rpartition("x")
        whole = f"1x{hosts or 1}x{gpus}"
        return list(
            topologies.get_topology_desc(
                platform="cuda", topology_name=whole, topology=whole, target_config=chip.target
            ).devices
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--topology: {topology!r}: {reason}") from None


def _answer_for_cudnn(chip: Chip) -> None:
    """Answers the questions that cuDNN's attention asks of a GPU, as there is none to ask."""
    from jax._src.cudnn import fused_attention_stablehlo as attention

    DESCRIBED[chip.name] = chip.capability
    attention.check_cudnn_version = lambda: 91000
    attention.check_compute_capability = lambda *_: True
    attention.is_cuda_compute_capability_equal = lambda *_: False


def chip_of(devices: Sequence[jax.Device]) -> Chip | None:
    """The kind of real or described devices; None if its rates are not known, as for CPUs."""
    kind = devices[0].device_kind
    known = [chip for chip in CHIPS.values() if kind.startswith(chip.name)]
    return max(known, key=lambda chip: len(chip.name), default=None)


def duration(moved: Collective, chip: Chip, devices: Sequence[jax.Device]) -> tuple[str, float]:
    """The slowest kind of link that a collective uses, and the seconds that it takes at full rate, among GPUs
    with the latency of its steps: the most of any of its groups of `devices`, in the order of the mesh."""
    groups = [[devices[place] for place in group] for group in moved.groups.tolist()]
    if not chip.wrapped:
        return max((_between_gpus(moved, chip, group) for group in groups), key=operator.itemgetter(1))
    sizes = np.max([device.coords for device in devices], axis=0) + 1  # type: ignore[attr-defined]
    return max((_between_tpus(moved, chip, group, sizes) for group in groups), key=operator.itemgetter(1))


def _between_gpus(moved: Collective, chip: Chip, group: list[Any]) -> tuple[str, float]:
    hosts = len({device.process_index for device in group})
    inside, outside = moved.sent / chip.link, _far(moved, hosts) / chip.network
    link, sending = ("network", outside) if outside >= inside else ("NVLink", inside)
    steps, between = _steps(moved, len(group), hosts)
    times = [
        # All seconds of a step are divided by the share of the rates, which latency has nothing to do with.
        chip.efficiency * (before + (steps - between) * near + between * far) + sending / share
        for before, near, far, share in PROTOCOLS
    ]
    return link, min(times) if steps else 0.0


def _steps(moved: Collective, members: int, hosts: int) -> tuple[int, int]:
    """The steps of a ring through all GPUs of a group, and those of them between hosts: one fewer than there
    are GPUs, and hosts; twice as many of an all-reduce; one of a permute."""
    if moved.operation.startswith("collective"):
        return min(1, members - 1), min(1, hosts - 1)
    rounds = 1 + (moved.operation == "all-reduce")
    return rounds * (members - 1), rounds * (hosts - 1)


def _between_tpus(moved: Collective, chip: Chip, group: list[Any], sizes: np.ndarray) -> tuple[str, float]:
    slices = len({slice_of(device) for device in group})
    near, far = _in_torus(moved, chip, group, sizes), _far(moved, slices) / chip.network
    return ("network", far) if far > near else ("ICI", near)


def _far(moved: Collective, parts: int) -> float:
    """The bytes that go through each network link where a group is in several parts, hosts or slices: a part
    gets what the others have through the links of all of its members."""
    if parts == 1:
        return 0.0
    if moved.operation.startswith("collective"):
        return moved.size
    share = moved.size * (1 - 1 / parts)
    return share if "all-to-all" in moved.operation else moved.sent / (moved.ways - 1) * (parts - 1)


def _in_torus(moved: Collective, chip: Chip, group: list[Any], sizes: np.ndarray) -> float:
    """In rings along the axes of the torus that the group spans, both ways where the ends are joined."""
    places = np.array([device.coords for device in group])
    if moved.operation.startswith("collective"):
        steps = np.abs(places[0] - places[-1])
        steps = np.where(sizes >= chip.wrapped, np.minimum(steps, sizes - steps), steps)
        return moved.size * max(1, int(steps.sum())) / chip.link
    spans = [len(np.unique(axis)) for axis in places.T]
    rings = [
        2 if span == size >= chip.wrapped else 1 for span, size in zip(spans, sizes, strict=True) if span > 1
    ]
    if not rings:
        return moved.sent / (BETWEEN_DIES * chip.link)
    chips = {(slice_of(device), *device.coords) for device in group}
    link = chip.link * len(group) / len(chips)  # devices of one chip share their links
    if "all-to-all" in moved.operation:  # on average a quarter of a ring away, half of a line
        return moved.size * max(spans) / (4 * min(rings) * link)
    return moved.sent / (sum(rings) * link)
