"""Collectives of compiled programs: their bytes and the devices that take part."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.planning.collectives import Collective, collective
from transformer.planning.hlo import Program, walk
from transformer.training import parallel


def read(line, devices=64):
    """The collective of one instruction."""
    program = Program.read(f"ENTRY %m (x: f32[8]) -> f32[8] {{\n  {line}\n}}")
    return collective(program, program.computations["m"][0], devices)


@pytest.mark.parametrize(
    ("result", "operation", "size"),
    [
        ("f32[8,4]{1,0}", "all-gather", 128),
        ("(bf16[2]{0}, bf16[128]{0})", "all-gather-start", 256),
        ("((bf16[2,3]{1,0}, f32[1]{0}), (bf16[16,3]{1,0}, f32[8]{0}))", "all-gather-start", 128),
        ("(f32[8]{0}, bf16[8]{0})", "all-reduce-start", 48),
        ("f32[4]{0:S(1)}", "reduce-scatter", 128),
        ("((f32[32]{0}, f32[64]{0}), (f32[4]{0}, f32[8]{0}))", "reduce-scatter-start", 384),
        ("(bf16[8]{0}, bf16[8]{0}, u32[], u32[])", "collective-permute-start", 16),
    ],
)
def test_what_is_moved_is_in_the_type_of_the_result(result, operation, size):
    found = read(f"%c = {result} {operation}(%x), replica_groups=[2,8]<=[16]", 16)
    assert (found.operation, found.size) == (operation.removesuffix("-start"), size)


def along(shape, axes, order=None):
    """The groups of devices along some axes of a mesh, one device at a time."""
    devices = np.arange(np.prod(shape)).reshape(shape) if order is None else order
    groups = {}
    for place in itertools.product(*map(range, shape)):
        key = tuple(each for axis, each in enumerate(place) if axis not in axes)
        groups.setdefault(key, []).append(int(devices[place]))
    return sorted(map(sorted, groups.values()))


GROUPS = [
    ("replica_groups={{0,1},{2,3}}", 4, [[0, 1], [2, 3]]),
    ("replica_groups={}", 4, [[0, 1, 2, 3]]),
    ("replica_groups=[2,4]<=[8]", 8, along([2, 4], [1])),
    ("replica_groups=[4,2]<=[2,4]T(1,0)", 8, along([2, 4], [0])),
    ("replica_groups=[4,4]<=[2,4,2]T(1,0,2)", 16, along([2, 4, 2], [0, 2])),
    ("replica_groups=mesh['a'=4,'b'=2] {'a'}", 8, along([4, 2], [0])),
    ("replica_groups=mesh['a'=4,'b'=2,'c'=3] {'a', 'c'}", 24, along([4, 2, 3], [0, 2])),
    ("replica_groups=mesh['a'=8,'b'=2] {'a':(1)2}", 16, along([2, 4, 2], [0])),
    ("replica_groups=mesh['a'=8,'b'=2] {'a':(2)4}", 16, along([2, 4, 2], [1])),
    ("replica_groups=mesh['a'=8,'b'=2] {'a':(2)2, 'b'}", 16, along([2, 2, 2, 2], [1, 3])),
    (
        "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
        8,
        along([2, 4], [1], np.arange(8).reshape(4, 2).T),
    ),
]


@pytest.mark.parametrize(("text", "devices", "expected"), GROUPS, ids=[text for text, *_ in GROUPS])
def test_groups_of_devices(text, devices, expected):
    found = read(f"%c = f32[8]{{0}} all-reduce(%x), channel_id=1, {text}, to_apply=%add", devices)
    assert sorted(map(sorted, found.groups.tolist())) == expected


def test_pairs_of_a_permute():
    found = read("%c = f32[8]{0} collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,0}}")
    assert found.groups.tolist() == [[0, 1], [1, 2], [2, 0]]
    assert found.sent == 32


@pytest.mark.parametrize(
    ("operation", "sent"),
    [("all-gather", 75), ("reduce-scatter", 75), ("all-reduce", 150), ("all-to-all", 75)],
)
def test_bytes_sent(operation, sent):
    assert Collective(operation, 100, np.arange(8).reshape(2, 4)).sent == sent


def test_a_fused_reduce_scatter_of_a_tpu():
    program = Program.read("""%all-reduce-scatter.3 (input: f32[64]) -> f32[16] {
  %input = f32[64]{0} parameter(0)
  %all-reduce.9 = f32[64]{0} all-reduce(%input), channel_id=4, replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %part = f32[16]{0} dynamic-slice(%all-reduce.9, %start), dynamic_slice_sizes={16}
}

ENTRY %m (x: f32[64]) -> f32[16] {
  %x = f32[64]{0} parameter(0)
  ROOT %f = f32[16]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3
}""")
    found = collective(program, program.named("m")["f"], 4)
    assert (found.operation, found.size, found.ways) == ("reduce-scatter", 256, 4)


def test_a_gather_that_a_part_of_a_tpu_runs_beside():
    """As TPU7x writes it: a call of its SparseCores, started and waited for."""
    program = Program.read("""%called (p: f32[16]) -> f32[64] {
  %p = f32[16]{0} parameter(0)
  ROOT %g = f32[64]{0} all-gather(%p), channel_id=4, replica_groups=[1,4]<=[4], dimensions={0}
}

ENTRY %m (x: f32[16]) -> f32[64] {
  %x = f32[16]{0} parameter(0)
  %s = ((f32[16]{0}, token[]), f32[64]{0}) call-start(%x, %t), async_execution_thread="sparsecore", \
to_apply=%called
  ROOT %d = f32[64]{0} call-done(%s)
}""")
    started = collective(program, program.named("m")["s"], 4)
    assert (started.operation, started.size, started.ways) == ("all-gather", 256, 4)


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
        compiled = jax.jit(forward, out_shardings=x.sharding).lower(kernels, x).compile()
    program = Program.read(compiled.as_text())
    found = {}
    for _, each, times in walk(program, program.entry):
        if one := collective(program, each, 8):
            found[one.operation, one.ways] = found.get((one.operation, one.ways), 0) + times * one.size
    assert found == {("all-gather", 8): 5 * 32 * 32 * 4}
