"""What a train step moves over the network of a cluster, from its compiled program, on a machine without one.

    python -m benchmarks.collectives --topology=h100:8x8 --config=configs/lm.py --config.KEY=VALUE

Compiles the step of a language model ahead of time for `h100:HOSTSxGPUS` or a TPU topology such as
`v5p:4x4x4`, without data and without parameters. Prints its attention kernels and the bytes per device of a
step: arguments and temporary buffers, and the results of each kind of collective, multiplied by the trips of
the loops around it. An all-reduce of n bytes sends about 2 n, an all-gather with a result of n bytes n; of a
reduce-scatter the whole array is counted, before it is divided; on TPUs, where it is part of a fusion, it is
not found.

Needs for GPUs the packages jax-cuda13-pjrt and jax-cuda13-plugin (of jax's version), nvidia-cuda-nvcc and
nvidia-nvvm, for TPUs libtpu (of the version that `jax[tpu]` pins).
"""

import argparse
import importlib.util
import math
import os
import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

OPERATIONS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")

SIZES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "s64": 8, "s32": 4, "u32": 4, "s8": 1, "u8": 1, "pred": 1}
"""Bytes of the types of HLO."""

H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 threads_per_warp: 32
  memory_bandwidth: 3352320000000 device_memory_size: 84942979072 l2_cache_size: 52428800
  threads_per_block_limit: 1024 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The card's public facts, as XLA's `GpuTargetConfigProto`."""


def topology(name: str) -> list[Any]:
    """Descriptions of the devices of "h100:8x8" (hosts x GPUs) or of a TPU topology."""
    from jax.experimental import topologies

    kind, _, shape = name.partition(":")
    if kind != "h100":
        return list(topologies.get_topology_desc(topology_name=name, platform="tpu").devices)
    from jax._src.cudnn import fused_attention_stablehlo as attention

    # cuDNN asks for a GPU only to know its version and what it can do.
    attention.check_cudnn_version = lambda: 91000
    attention.check_compute_capability = lambda *_: True
    attention.is_cuda_compute_capability_equal = lambda *_: False
    described = f"1x{shape}"
    return list(
        topologies.get_topology_desc(
            platform="cuda", topology_name=described, topology=described, target_config=H100
        ).devices
    )


def compiled(config: str, overrides: list[tuple[str, str]], devices: list[Any]) -> Any:
    """The train step of a language model on these devices."""
    import jax
    import jax.numpy as jnp

    from commands.opening import read_config
    from experiments.language_modeling import LanguageModeling, LanguageModelingConfig
    from transformer.config import from_values
    from transformer.layers.kernels import Recorded
    from transformer.training.parallel import batch_sharding
    from transformer.training.run import Run

    c = from_values(LanguageModelingConfig, read_config(config, overrides))
    vocabulary: Any = types.SimpleNamespace(vocab_size=c.data.vocab_size)
    run = Run(LanguageModeling(c, tokenizer=vocabulary), c, "nowhere", devices=devices)
    shape, sharding = (c.train.batch_size, c.data.sequence_length), batch_sharding(run.mesh)
    kinds = {"tokens": jnp.int32, "targets": jnp.int32, "segments": jnp.int32, "positions": jnp.int32}
    kinds |= {"weights": jnp.float32, "bytes": jnp.float32}
    batch = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, dtype in kinds.items()}
    with run.placed():
        step = Recorded(print)(run._step())
        step = jax.jit(step, donate_argnums=0, out_shardings=(run.shardings, None))
        return step.lower(run.abstract, batch).compile()


def collectives(program: str) -> Counter[str]:
    """Bytes of each kind of collective in a compiled program, in one run of it on each device."""
    bodies: dict[str, list[str]] = {}
    lines: list[str] = []
    entry = ""
    for line in program.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            lines = bodies[head[2]] = []
            entry = head[2] if head[1] else entry
        lines.append(line)
    found: Counter[str] = Counter()

    def count(name: str, times: int) -> None:
        for line in bodies.get(name, []):
            if loop := re.search(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)", line):
                count(loop[2], times * trips(line, bodies.get(loop[1], [])))
            elif call := re.search(r" (?:call|async-start)\(.*(?:to_apply|calls)=%?([\w.-]+)", line):
                count(call[1], times)
            elif each := re.search(rf"= (.*?) ({'|'.join(OPERATIONS)})(-start)?\(", line):
                found[each[2]] += times * moved(each[1], each[2], bool(each[3]), line)

    count(entry, 1)
    return found


def trips(line: str, condition: list[str]) -> int:
    """How often a loop is run: known to XLA, or the constant of its condition."""
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', line):
        return int(known[1])
    return max([int(n) for each in condition for n in re.findall(r"constant\((\d+)\)", each)], default=1)


def moved(result: str, operation: str, started: bool, line: str) -> int:
    """The bytes of a collective's result, or of a reduce-scatter's operands.

    The result of an operation that is only started is (its operands, its results, ...), but for all-reduce.
    """
    parts = top_level(result)
    if started and operation != "all-reduce":
        return nbytes(parts[0 if operation == "reduce-scatter" else 1])
    return nbytes(result) * (group_size(line) if operation == "reduce-scatter" else 1)


def top_level(text: str) -> list[str]:
    """The elements of a tuple's type."""
    parts, depth = [""], 0
    for letter in text.strip():
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def nbytes(text: str) -> int:
    """The bytes of all arrays in a type."""
    return sum(
        SIZES.get(kind, 0) * math.prod(int(n) for n in shape.split(",") if n)
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", text)
    )


def group_size(line: str) -> int:
    """The number of devices that take part together."""
    if groups := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(groups[1])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    return listed[1].count(",") + 1 if listed else 1


def main() -> None:
    """Prints a row of a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", required=True)
    parser.add_argument("--config", required=True)
    flags, rest = parser.parse_known_args()
    overrides = [tuple(each.removeprefix("--config.").split("=", 1)) for each in rest]
    if nvcc := importlib.util.find_spec("nvidia"):
        folder = Path(next(iter(nvcc.submodule_search_locations or [])), "cu13")
        os.environ.setdefault("XLA_FLAGS", f"--xla_gpu_cuda_data_dir={folder}")
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }.items():
        os.environ.setdefault(name, value)
    program = compiled(flags.config, overrides, topology(flags.topology))  # type: ignore[arg-type]
    memory, found = program.memory_analysis(), collectives(program.as_text())
    columns = {"arguments": memory.argument_size_in_bytes, "temporary": memory.temp_size_in_bytes}
    columns |= {operation: found[operation] for operation in OPERATIONS}
    print("GB:", ", ".join(f"{name} {size / 1e9:.2f}" for name, size in columns.items()))
    print("|", " | ".join([" ".join(sys.argv[1:]), *(f"{size / 1e9:.2f}" for size in columns.values())]), "|")


if __name__ == "__main__":
    main()
