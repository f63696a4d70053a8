"""Bytes of collectives, read from a compiled program."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.collectives import collectives, moved
from transformer.training import parallel


@pytest.mark.parametrize(
    ("operation", "result", "started", "line", "size"),
    [
        ("all-gather", "f32[8,4]{1,0}", False, "", 128),
        ("all-gather", "(bf16[2]{0}, bf16[128]{0})", True, "", 256),
        ("all-gather", "((bf16[2,3]{1,0}, f32[1]{0}), (bf16[16,3]{1,0}, f32[8]{0}))", True, "", 128),
        ("all-reduce", "(f32[8]{0}, bf16[8]{0})", True, "", 48),
        ("reduce-scatter", "f32[4]{0}", False, "replica_groups=[2,8]<=[16]", 128),
        ("reduce-scatter", "f32[4]{0}", False, "replica_groups={{0,1,2,3},{4,5,6,7}}", 64),
        ("reduce-scatter", "((f32[32]{0}, f32[64]{0}), (f32[4]{0}, f32[8]{0}))", True, "", 384),
        ("collective-permute", "(bf16[8]{0}, bf16[8]{0}, u32[], u32[])", True, "", 16),
    ],
)
def test_what_is_moved_is_in_the_type_of_the_result(operation, result, started, line, size):
    assert moved(result, operation, started, line) == size


def test_what_is_in_a_loop_counts_as_often_as_it_runs():
    """Each of 5 layers gathers a kernel of 32 x 32 in the forward pass; the batch needs nothing."""
    mesh = parallel.make_mesh(parallel.MeshConfig(data=1, fsdp=8))
    kernels = jax.ShapeDtypeStruct(
        (5, 32, 32), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P(None, "fsdp"))
    )
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=parallel.batch_sharding(mesh))

    def forward(kernels, x):
        return jax.lax.scan(lambda x, kernel: (jnp.sin(x @ kernel), None), x, kernels)[0]

    with parallel.placed(mesh, parallel.RULES["default"]):
        program = jax.jit(forward, out_shardings=x.sharding).lower(kernels, x).compile().as_text()
    assert collectives(program) == {"all-gather": 5 * 32 * 32 * 4}
