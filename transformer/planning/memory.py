"""The memory of a train step on each device, by part."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from transformer.training.parallel import batch_sharding, mesh_axes
from transformer.training.run import Run
from transformer.training.step import memory_gb


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device.

    `parameters`, `optimizer` and `other` (the rest of the training state, and a batch) are held for the whole
    run. `gradients` are as large as parameters, `saved` is what differentiation keeps of the forward pass,
    and `working` what the program needs besides. XLA may compute again what is saved: where the program has
    less, `saved` is what there is.
    """

    parameters: int
    optimizer: int
    other: int
    gradients: int
    saved: int
    working: int

    @property
    def total(self) -> int:
        """The memory of the compiled program."""
        return sum(dataclasses.astuple(self))


def memory(run: Run, compiled: jax.stages.Compiled) -> Memory:
    """The memory of a run's compiled train step."""
    analysis, total_gb = compiled.memory_analysis(), memory_gb(compiled)
    assert analysis is not None and total_gb is not None
    parameters, optimizer = held(run.abstract.params), held(run.abstract.opt_state)
    other = analysis.argument_size_in_bytes - parameters - optimizer
    free = int(total_gb * 2**30) - analysis.argument_size_in_bytes
    gradients = min(parameters, free)
    saved = min(saved_bytes(run) // rows_apart(run.mesh), free - gradients)
    return Memory(parameters, optimizer, other, gradients, saved, free - gradients - saved)


def saved_bytes(run: Run) -> int:
    """Bytes that the forward pass of one microbatch saves for the backward pass, on all devices together."""
    experiment = run.experiment
    parts = 1 if experiment.whole_batch else run.config.parallel.microbatches

    def part(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype), tree
        )

    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), run.abstract.params)

    def backward(params: Any, batch: Any, carry: Any) -> Any:
        def objective(params: Any) -> Any:
            rng = jax.random.key(0)
            if carry is None:
                terms = experiment.loss(params, batch, rng, True)
            else:
                terms, _ = experiment.loss_and_carry(params, batch, carry, rng, True)
            totals = [terms[name].total for name in experiment.weigh(batch)]
            return functools.reduce(jnp.add, totals)

        return jax.vjp(objective, params)[1]

    with run.placed():
        inputs = params, part(experiment.batch_shapes()), part(run.abstract.carry)
        program = jax.make_jaxpr(backward)(*inputs).jaxpr
    invars = {id(variable) for variable in program.invars}
    results = [variable for variable in program.outvars if _is_variable(variable)]
    saved = {id(variable): variable.aval for variable in results if id(variable) not in invars}
    return sum(math.prod(aval.shape) * _itemsize(aval.dtype) for aval in saved.values())


def rows_apart(mesh: jax.sharding.Mesh) -> int:
    """The number of parts that a mesh divides rows and sequences into."""
    return math.prod(mesh.shape[axis] for part in batch_sharding(mesh).spec for axis in mesh_axes(part))


def held(tree: Any) -> int:
    """The bytes of a tree of sharded abstract arrays on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _is_variable(variable: Any) -> bool:
    return not hasattr(variable, "val")  # a literal has one


def _itemsize(dtype: Any) -> int:
    return 8 if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else jnp.dtype(dtype).itemsize
