"""Programs read from the text of HLO: FLOPs, bytes and trips."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import pytest

from transformer.planning.hlo import Instruction, Program, walk
from transformer.planning.hlo_types import in_memory, nbytes, top_level


def compiled(function, *shapes, dtype=jnp.float32):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return Program.read(jax.jit(function).lower(*arguments).compile().as_text())


def flops(program):
    return sum(
        times * sum(program.flops(name, each).values()) for name, each, times in walk(program, program.entry)
    )


GPU = """
HloModule jit_step, is_scheduled=true

%fused (parameter_0: bf16[64,32], parameter_1: bf16[32,16]) -> bf16[64,16] {
  %parameter_0 = bf16[64,32]{1,0} parameter(0)
  %parameter_1 = bf16[32,16]{1,0} parameter(1)
  ROOT %dot.1 = bf16[64,16]{1,0} dot(%parameter_0, %parameter_1), lhs_contracting_dims={1}
}

%body (p: (s32[], bf16[64,32], bf16[32,16])) -> (s32[], bf16[64,32], bf16[32,16]) {
  %p = (s32[], bf16[64,32]{1,0}, bf16[32,16]{1,0}) parameter(0)
  %x = bf16[64,32]{1,0} get-tuple-element(%p), index=1
  %w = bf16[32,16]{1,0} get-tuple-element(%p), index=2
  %gemm = bf16[64,16]{1,0} fusion(%x, %w), kind=kCustom, calls=%fused, metadata={op_name="jit(f) (a = b)"}
  ROOT %t = (s32[], bf16[64,32]{1,0}, /*index=2*/bf16[32,16]{1,0}) tuple(%i, %x, %w)
}

%condition (p.1: (s32[], bf16[64,32], bf16[32,16])) -> pred[] {
  %p.1 = (s32[], bf16[64,32]{1,0}, bf16[32,16]{1,0}) parameter(0)
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: bf16[64,32], b: bf16[32,16]) -> bf16[64,32] {
  %a = bf16[64,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1)
  %start = (s32[], bf16[64,32]{1,0}, bf16[32,16]{1,0}) tuple(%zero, %a, %b)
  %loop = (s32[], bf16[64,32]{1,0}, bf16[32,16]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %out = bf16[64,32]{1,0} get-tuple-element(%loop), index=1
}
"""


CUBLAS = """
HloModule jit_step, is_scheduled=true

ENTRY %main (a: bf16[2,1024,768], b: bf16[2,768,256]) -> f32[2,1024,256] {
  %a = bf16[2,1024,768]{2,1,0} parameter(0)
  %b = bf16[2,768,256]{2,1,0} parameter(1)
  %gemm = (f32[2,1024,256]{2,1,0}, s8[33554432]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(f)/dot_general"}, \
backend_config={"gemm_backend_config":{"alpha_real":1,"beta":0,"dot_dimension_numbers":{\
"lhs_batch_dimensions":["0"],"lhs_contracting_dimensions":["2"],"rhs_batch_dimensions":["0"],\
"rhs_contracting_dimensions":["1"]},"epilogue":"DEFAULT"},"operation_queue_id":"0"}
  ROOT %out = f32[2,1024,256]{2,1,0} get-tuple-element(%gemm), index=0
}
"""


def test_products_by_a_library_of_a_gpu_count_without_their_space_to_work_in():
    """As XLA writes them for the GPU at hand (jax 0.11 on an H200)."""
    program = Program.read(CUBLAS)
    assert flops(program) == 2 * 2 * 1024 * 768 * 256
    product = next(each for each in program.computations["main"] if each.name == "gemm")
    assert program.flops("main", product) == {"bf16": 2 * 2 * 1024 * 768 * 256}
    sizes = 2 * 1024 * 768 * 2 + 2 * 768 * 256 * 2 + 2 * 1024 * 256 * 4
    assert program.traffic("main", product) == sizes
    whole = dataclasses.replace(product, result="f32[2,1024,256]{2,1,0}")  # without such space
    assert program.traffic("main", whole) == sizes


def test_products_in_a_fusion_in_a_loop():
    program = Program.read(GPU)
    assert flops(program) == 7 * 2 * 64 * 32 * 16
    fusions = [(each, times) for _, each, times in walk(program, program.entry) if each.opcode == "fusion"]
    assert [(each.name, each.operands, times) for each, times in fusions] == [("gemm", ("x", "w"), 7)]
    assert program.traffic("body", fusions[0][0]) == 2 * (64 * 32 + 32 * 16 + 64 * 16)


@pytest.mark.parametrize(
    "shapes", [((8, 16), (16, 4)), ((3, 8, 16), (3, 16, 4)), ((2, 3, 5, 7), (2, 3, 7, 11))]
)
def test_products_of_a_compiled_program(shapes):
    (*batch, rows, inner), (*_, columns) = shapes
    program = compiled(lambda a, b: jnp.sin(a @ b), *shapes)
    assert flops(program) == 2 * math.prod(batch) * rows * inner * columns


def test_a_scan_counts_every_trip():
    program = compiled(
        lambda w, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0], (5, 8, 8), (4, 8)
    )
    assert flops(program) == 5 * 2 * 4 * 8 * 8


def brute_force(size, kernel, stride, low, high, dilation, hole):
    """Pairs of an output and a kernel place that meet an input, one by one."""
    span = (size - 1) * hole + 1
    width = (kernel - 1) * dilation + 1
    outputs = [start for start in range(-low, span + high - width + 1) if (start + low) % stride == 0]
    places = [start + k * dilation for start, k in itertools.product(outputs, range(kernel))]
    return sum(0 <= place < span and place % hole == 0 for place in places)


def test_convolutions_count_what_meets_an_input(rng):
    """On TPUs products with batch axes are convolutions with windows as large as these axes."""
    for _ in range(100):
        size, kernel, stride, low, high, dilation, hole = rng.integers(
            [1, 1, 1, 0, 0, 1, 1], [9, 6, 4, 6, 6, 3, 4]
        )
        window = f"size={kernel} stride={stride} pad={low}_{high} lhs_dilate={hole} rhs_dilate={dilation}"
        text = f"""ENTRY %main (a: f32[3,{size},5]) -> f32[1] {{
  %a = f32[3,{size},5]{{2,1,0}} parameter(0)
  %b = f32[{kernel},5,2]{{2,1,0}} parameter(1)
  ROOT %c = f32[3,1,2]{{2,1,0}} convolution(%a, %b), window={{{window}}}, dim_labels=b0f_0io->b0f
}}"""
        expected = 2 * 3 * 5 * 2 * brute_force(size, kernel, stride, low, high, dilation, hole)
        assert flops(Program.read(text)) == expected, window


def test_heads_on_a_tpu():
    """bthk = btd . dhk over 12 heads of 64, as XLA writes it."""
    text = """ENTRY %main (a: bf16[1024,768]) -> bf16[1024,12,64] {
  %a = bf16[1024,768,1]{1,0,2:T(8,128)(2,1)} parameter(0)
  %b = bf16[768,12,64]{2,0,1:T(8,128)(2,1)} parameter(1)
  ROOT %c = bf16[1024,12,64]{2,0,1} convolution(%a, %b), window={size=12 pad=11_11}, dim_labels=bf0_i0o->b0f
}"""
    assert flops(Program.read(text)) == 2 * 1024 * 768 * 12 * 64


def test_sizes():
    assert nbytes("(f32[2,3]{1,0}, (bf16[4]{0:T(128)S(1)}, pred[]))") == 24 + 8 + 1
    assert in_memory("(f32[2,3]{1,0}, (bf16[4]{0:T(128)S(1)}, pred[]))") == 24 + 1
    assert top_level("((f32[2], s8[1,2]{1,0}), f32[3])") == ["((f32[2], s8[1,2]{1,0})", " f32[3])"]


FUSION = """
%slicing (p0: f32[32,100], p1: s32[]) -> f32[1,100] {
  %p0 = f32[32,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %view = f32[32,100]{1,0} bitcast(%p0)
  ROOT %slice = f32[1,100]{1,0} dynamic-slice(%view, %p1, %zero), dynamic_slice_sizes={1,100}
}

%updating (q0: f32[32,100], q1: f32[1,100], q2: s32[]) -> f32[32,100] {
  %q0 = f32[32,100]{1,0} parameter(0)
  %q1 = f32[1,100]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  ROOT %update = f32[32,100]{1,0} dynamic-update-slice(%q0, %q1, %q2, %zero)
}

ENTRY %main (a: f32[32,100], i: s32[]) -> f32[32,100] {
  %a = f32[32,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %layer = f32[1,100]{1,0} fusion(%a, %i), kind=kLoop, calls=%slicing
  ROOT %saved = f32[32,100]{1,0} fusion(%a, %layer, %i), kind=kLoop, calls=%updating
}
"""


def test_a_fusion_reads_a_slice_and_writes_a_part():
    program = Program.read(FUSION)
    named = program.named("main")
    assert program.traffic("main", named["layer"]) == 400 + 4 + 400
    assert program.traffic("main", named["saved"]) == 400 + 4 + 400
    assert program.traffic("main", named["a"]) == 0


ASYNCHRONOUS = """
%read (p0: bf16[12,16,3072], p1: s32[]) -> bf16[1,16,3072] {
  %p0 = bf16[12,16,3072]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %slice = bf16[1,16,3072]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,16,3072}
}

%saved (q0: bf16[12,16,3072], q1: s32[], q2: bf16[16,3072]) -> bf16[12,16,3072] {
  %q0 = bf16[12,16,3072]{2,1,0} parameter(0)
  %q2 = bf16[16,3072]{1,0} parameter(2)
  %view = bf16[1,16,3072]{2,1,0} bitcast(%q2)
  %q1 = s32[] parameter(1)
  ROOT %update = bf16[12,16,3072]{2,1,0} dynamic-update-slice(%q0, %view, %q1, %zero, %zero)
}

%multiplied (m0: bf16[16,3072], m1: bf16[3072,8]) -> bf16[16,8] {
  %m0 = bf16[16,3072]{1,0} parameter(0)
  %m1 = bf16[3072,8]{1,0} parameter(1)
  ROOT %dot = bf16[16,8]{1,0} dot(%m0, %m1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: bf16[12,16,3072], i: s32[], x: bf16[16,3072], w: bf16[3072,8]) -> bf16[12,16,3072] {
  %a = bf16[12,16,3072]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = bf16[16,3072]{1,0} parameter(2)
  %w = bf16[3072,8]{1,0} parameter(3)
  %s = ((bf16[12,16,3072]{2,1,0}, s32[]), bf16[1,16,3072]{2,1,0}, u32[]) fusion-start(%a, %i), kind=kLoop, \
calls=%read
  %u = ((bf16[12,16,3072]{2,1,0}, s32[], bf16[16,3072]{1,0}), bf16[12,16,3072]{2,1,0}, u32[]) \
fusion-start(%a, %i, %x), kind=kLoop, calls=%saved
  %g = ((bf16[16,3072]{1,0}, bf16[3072,8]{1,0}), bf16[16,8]{1,0}, u32[]) fusion-start(%x, %w), \
calls=%multiplied
  %layer = bf16[1,16,3072]{2,1,0} fusion-done(%s)
  %product = bf16[16,8]{1,0} fusion-done(%g)
  ROOT %all = bf16[12,16,3072]{2,1,0} fusion-done(%u)
}
"""


def test_an_asynchronous_fusion_reads_and_writes_what_it_would_in_turn():
    """As jax 0.11 writes the layers of a scan for GPUs: results are (operands, results, state)."""
    program = Program.read(ASYNCHRONOUS)
    layer = 16 * 3072 * 2
    moved = {name: program.traffic("main", line) for name, line in program.named("main").items()}
    assert (moved["s"], moved["u"]) == (2 * layer + 4, 2 * layer + 4)
    assert moved["g"] == layer + 3072 * 8 * 2 + 16 * 8 * 2
    assert moved["layer"] == moved["product"] == moved["all"] == 0
    assert flops(program) == 2 * 16 * 3072 * 8


PASSING = """
%async_collective_fusion (p0: f32[100], p1: f32[800], p2: f32[50]) -> (f32[50], f32[100]) {
  %p0 = f32[100]{0} parameter(0)
  %p1 = f32[800]{0} parameter(1)
  %p2 = f32[50]{0} parameter(2)
  %gathered = f32[800]{0} all-gather(%p0), channel_id=1, replica_groups=[1,8]<=[8]
  %twice = f32[50]{0} add(%p2, %p2)
  ROOT %all = (f32[50]{0}, f32[100]{0}, f32[800]{0}, f32[800]{0}) tuple(%twice, %p0, %p1, %gathered)
}

ENTRY %main (a: f32[100], b: f32[800], c: f32[50]) -> f32[50] {
  %a = f32[100]{0} parameter(0)
  %b = f32[800]{0} parameter(1)
  %c = f32[50]{0} parameter(2)
  %f = (f32[50]{0}, f32[100]{0}, f32[800]{0}, f32[800]{0}) fusion(%a, %b, %c), calls=%async_collective_fusion
}
"""


def test_what_a_fusion_passes_on_is_not_moved():
    program = Program.read(PASSING)
    assert program.traffic("main", program.named("main")["f"]) == 200 + 200


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("%c = (f32[10]{0:S(1)}, f32[10]{0}, u32[]) copy-start(%x)", 40),
        ("%c = (f32[10]{0}, f32[10]{0}, u32[]) copy-start(%x)", 80),
        ("%c = ((f32[100]{0}), f32[10]{0:S(1)}, u32[]) slice-start(%x)", 40),
        ("%c = (f32[10]{0}, f32[80]{0}) all-gather-start(%y)", 360),
        ("%c = f32[10]{0:S(1)} copy-done(%x)", 0),
        ("%c = f32[10]{0} copy(%x)", 440),
        ('%c = f32[10]{0} custom-call(), custom_call_target="AllocateBuffer"', 0),
        ("%c = f32[10]{0} dynamic-slice(%x, %i), dynamic_slice_sizes={10}", 80),
        ("%c = f32[100]{0} dynamic-update-slice(%x, %y, %i)", 80),
    ],
)
def test_bytes_of_single_instructions(line, size):
    text = "ENTRY %m (x: f32[100]) -> f32[1] {\n %x = f32[100]{0} parameter(0)\n"
    text += f" %y = f32[10]{{0}} parameter(1)\n %i = s32[] parameter(2)\n {line}\n}}"
    program = Program.read(text)
    assert program.traffic("m", program.named("m")["c"]) == size


def test_a_line_with_brackets_in_its_attributes_is_read():
    line = '  %a.1 = (f32[2]{0}, f32[3]{0}) fusion(f32[2]{0} %x, %y.2), metadata={op_name="f(a, b) = c("}'
    (found,) = Program.read(f"ENTRY %m (x: f32[2]) -> f32[2] {{\n{line}\n}}").computations["m"]
    assert isinstance(found, Instruction)
    assert (found.name, found.opcode, found.operands) == ("a.1", "fusion", ("x", "y.2"))
    assert found.result == "(f32[2]{0}, f32[3]{0})"
    assert found.shape == (2,)
