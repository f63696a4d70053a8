"""Kernels and bytes of a decoding step, from its program for a GPU that need not be there.

    python -m benchmarks.planned_decoding [--topology=h200:1x1] [--cases M1 S16] [--dtype=bfloat16]

In an environment with requirements-plan.txt, as for `--mode=plan`. Compiles the greedy `generate` of
`benchmarks.decode_speed` with its layers unrolled and parameters of type `--dtype`, and reads the body of its
loop. "MB" are bytes that a token reads and writes, of 10^6; "weights" are those of the parameters.
"""

import argparse
import math
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.decode_speed import CASES, PROMPT, Case, weights

MOVED = ("fusion", "fusion-start", "custom-call", "copy", "dot", "conditional", "call")
"""Instructions that are one kernel or more."""


def step_of(case: Case, dtype: str, devices: list[Any]) -> dict[str, float]:
    """Kernels and branches of a step of `case`, and MB that it reads and writes, and of the parameters."""
    import jax
    from flax import traverse_util
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from transformer.decoding.generation import generate
    from transformer.models.decoder import Decoder, DecoderStepper
    from transformer.planning.hlo import Program

    shape = case.shape
    mesh = Mesh(np.array(devices[:1]), ("data",), axis_types=(AxisType.Auto,))

    def array(sizes: tuple[int, ...], kind: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, kind, sharding=NamedSharding(mesh, PartitionSpec()))

    config = shape.gpt2(max_length=shape.length, vocab_multiple=1, dtype=dtype, scan_layers=False)
    model = Decoder(config, shape.vocab_size)
    sizes = {path: math.prod(values.shape) for path, values in weights(shape).items()}
    flat = {path: array(values.shape, dtype) for path, values in weights(shape).items()}
    with jax.set_mesh(mesh):
        params = traverse_util.unflatten_dict(flat, sep="/")
        stepper = jax.eval_shape(lambda params: DecoderStepper.of(model, params), params)
        stepper = jax.tree.map(lambda leaf: array(leaf.shape, leaf.dtype), stepper)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), case.batch))
        inputs = array((case.batch, PROMPT), np.int32), array((case.batch,), np.int32)
        options = {"max_new_tokens": case.new, "temperature": None}
        compiled = generate.lower(stepper, *inputs, array(keys.shape, keys.dtype), **options).compile()
    program = Program.read(compiled.as_text())
    loops = [each for lines in program.computations.values() for each in lines if each.opcode == "while"]
    body = max((loop.called for loop in loops), key=lambda name: len(program.computations[name]))
    kernels = [each for each in program.computations[body] if each.opcode in MOVED]
    return {
        "kernels": len(kernels),
        "branches": sum(each.opcode == "conditional" for each in kernels),
        "MB": sum(program.traffic(body, each) for each in kernels) / 1e6,
        "weights": sum(sizes.values()) * np.dtype(jax.numpy.dtype(dtype)).itemsize / 1e6,
    }


def main() -> None:
    """Parses flags, compiles each case, prints the table."""
    from transformer.planning.hardware import described, prepare

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="h200:1x1")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["M1", "S16"])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    flags = parser.parse_args()
    prepare(flags.topology)
    devices = described(flags.topology)
    table = []
    for name in flags.cases:
        figures = step_of(CASES[name], flags.dtype, devices)
        table.append({"case": name} | {key: f"{value:.0f}" for key, value in figures.items()})
    print(common.table(table))


if __name__ == "__main__":
    main()
