"""The time of a program, instruction by instruction, against sums by hand."""

import types

import pytest

from transformer.planning.hardware import CHIPS
from transformer.planning.hlo import Program
from transformer.planning.schedule import schedule

H100 = CHIPS["h100"]
DEVICES = [types.SimpleNamespace(process_index=0) for _ in range(8)]
GATHER = "(bf16[{n}]{{0}}, bf16[{m}]{{0}}) all-gather-start(%x), channel_id=1, replica_groups=[1,8]<=[8]"


def run(*lines, more="", attention=0.0):
    body = "\n".join(f"  {line}" for line in lines)
    return schedule(
        Program.read(f"{more}\nENTRY %m (x: f32[8]) -> f32[8] {{\n{body}\n}}"), H100, DEVICES, attention
    )


GEMM = (
    "%a = bf16[8192,8192]{1,0} parameter(0)",
    "%b = bf16[8192,8192]{1,0} parameter(1)",
    "%x = bf16[1000000]{0} parameter(2)",
)
DOT = "%dot = bf16[8192,8192]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
GEMM_SECONDS = 2 * 8192**3 / 989.4e12
GATHERED = 8_000_000 * 2 * 7 / 8 / 450e9 / (120 / 128) + 0.53 * (14e-6 + 7 * 1.9e-6)
"""By NCCL's LL128: seven steps, and 120 of 128 bytes are data."""


def start(name="g"):
    return f"%{name} = {GATHER.format(n=1_000_000, m=8_000_000)}"


DONE = "%d = bf16[8000000]{0} all-gather-done(%g)"


def test_products_and_memory():
    found = run(*GEMM, DOT, "%c = bf16[8192,8192]{1,0} copy(%dot)")
    assert found.products == pytest.approx(GEMM_SECONDS)
    assert found.memory == pytest.approx(2 * 2 * 8192**2 / 3352e9)
    assert found.seconds == pytest.approx(found.products + found.memory)
    assert found.flops == 2 * 8192**3
    assert found.bound == "compute"


def test_an_asynchronous_fusion_takes_the_time_of_its_bytes():
    """It is one of the same memory as what runs beside it, and has ended where it is waited for."""
    sliced = """%read (p: bf16[5,8192,8192]) -> bf16[1,8192,8192] {
  %p = bf16[5,8192,8192]{2,1,0} parameter(0)
  ROOT %r = bf16[1,8192,8192]{2,1,0} dynamic-slice(%p, %z, %z, %z), dynamic_slice_sizes={1,8192,8192}
}"""
    layers = "%l = bf16[5,8192,8192]{2,1,0} parameter(3)"
    result = "((bf16[5,8192,8192]{2,1,0}), bf16[1,8192,8192]{2,1,0}, u32[])"
    start, done = (
        f"%s = {result} fusion-start(%l), calls=%read",
        "%e = bf16[1,8192,8192]{2,1,0} fusion-done(%s)",
    )
    planned = run(*GEMM, layers, start, DOT, done, more=sliced)
    assert planned.memory == pytest.approx(2 * 2 * 8192**2 / 3352e9)
    assert planned.products == pytest.approx(GEMM_SECONDS)
    assert planned.exposed == 0


def test_a_gather_beside_a_product_is_hidden():
    found = run(*GEMM, start(), DOT, DONE)
    (row,) = found.moved
    assert (row.operation, row.link, row.ways, row.times, row.size) == (
        "all-gather",
        "NVLink",
        8,
        1,
        16_000_000,
    )
    assert row.seconds == pytest.approx(GATHERED)
    assert row.hidden == pytest.approx(GATHERED)
    assert found.exposed == 0


def test_a_gather_that_is_waited_for_is_not():
    found = run(*GEMM, start(), DONE, DOT)
    assert found.exposed == pytest.approx(GATHERED)
    assert found.moved[0].hidden == pytest.approx(0)
    same = run(*GEMM, DOT, "%g = bf16[8000000]{0} all-gather(%x), replica_groups=[1,8]<=[8]")
    assert same.exposed == pytest.approx(GATHERED)


def test_gathers_share_the_network():
    """The second one starts when the first one has ended."""
    second = "%e = bf16[8000000]{0} all-gather-done(%h)"
    found = run(*GEMM, start("g"), start("h"), DONE, second)
    assert found.exposed == pytest.approx(2 * GATHERED)


def test_a_loop_repeats_its_body():
    body = "\n".join(
        ("%body (p: s32[]) -> s32[] {", *(f"  {line}" for line in (*GEMM, start(), DOT, DONE)), "}")
    )
    loop = '%l = s32[] while(%i), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    found = run(loop, more=body)
    assert found.products == pytest.approx(5 * GEMM_SECONDS)
    assert (found.moved[0].times, found.moved[0].size) == (5, 5 * 16_000_000)


def test_a_collective_in_several_fusions_is_one():
    """As TPUs write an asynchronous one: a fusion that starts it, one with a product, one that ends it."""
    parts = {
        "started": 'ROOT %r = bf16[8]{0} custom-call(%g), custom_call_target="AsyncCollectiveStart"',
        "async_collective_fusion.1": "ROOT %r = bf16[8]{0} negate(%g)",
        "ended": 'ROOT %r = bf16[8]{0} custom-call(%g), custom_call_target="AsyncCollectiveDone"',
    }
    gather = "%g = bf16[8000000]{0} all-gather(%p), channel_id=7, replica_groups=[1,8]<=[8]"
    more = "\n".join(
        f"%{name} (p: bf16[8]) -> bf16[8] {{\n  %p = bf16[8]{{0}} parameter(0)\n  {gather}\n  {end}\n}}"
        for name, end in parts.items()
    )
    calls = [f"%f{i} = bf16[8]{{0}} fusion(%x), kind=kCustom, calls=%{name}" for i, name in enumerate(parts)]
    found = run(*GEMM, calls[0], DOT, calls[1], calls[2], more=more)
    assert [(row.operation, row.times) for row in found.moved] == [("all-gather", 1)]
    assert found.exposed == 0
    assert run(*GEMM, *calls, DOT, more=more).exposed > 0.9 * GATHERED


def test_a_collective_may_go_on_in_a_loop():
    """A transfer that starts before a loop, whose products run beside it, counts once, not once a trip."""
    start = 'ROOT %r = bf16[8]{0} custom-call(%g), custom_call_target="AsyncCollectiveStart"'
    gather = "%g = bf16[8000000]{0} all-gather(%p), channel_id=7, replica_groups=[1,8]<=[8]"
    more = "\n".join(
        f"%{name} (p: bf16[8]) -> bf16[8] {{\n  %p = bf16[8]{{0}} parameter(0)\n  {gather}\n  {end}\n}}"
        for name, end in {
            "started": start,
            "async_collective_fusion.1": "ROOT %r = bf16[8]{0} negate(%g)",
        }.items()
    )
    inside = "%f1 = bf16[8]{0} fusion(%x), kind=kCustom, calls=%async_collective_fusion.1"
    more += "\n" + "\n".join(
        ("%body (p: s32[]) -> s32[] {", *(f"  {line}" for line in (*GEMM, DOT, inside)), "}")
    )
    loop = '%l = s32[] while(%i), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    start = "%f0 = bf16[8]{0} fusion(%x), kind=kCustom, calls=%started"
    assert [row.times for row in run(*GEMM, start, loop, more=more).moved] == [1]
    assert [row.times for row in run(*GEMM, loop, more=more).moved] == [5]


def test_slices_of_tpus_send_to_one_another():
    """A send starts it, and the receive of the same rendezvous ends it; 2 slices of 4."""
    told = (
        'frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.7_0",'
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    result, done = "(f32[1000000]{0}, u32[], token[])", "%e = (f32[1000000]{0}, token[]) recv-done(%r)"
    send, recv = f"%s = {result} send(%x, %t), {told}", f"%r = {result} recv(%t), {told}"
    chip = CHIPS["v5e"]
    devices = [
        types.SimpleNamespace(platform="tpu", coords=(i % 4, 0, 0), slice_index=i // 4) for i in range(8)
    ]

    def found(*lines):
        text = "\n".join(("ENTRY %m (x: f32[8]) -> f32[8] {", *lines, "}"))
        return schedule(Program.read(text), chip, devices, 0.0)

    (row,) = found(*GEMM, send, recv, done, DOT).moved
    assert (row.operation, row.link, row.ways, row.size) == ("all-reduce", "network", 2, 4_000_000)
    assert row.seconds == pytest.approx(4e6 / 3.125e9)
    assert row.hidden == pytest.approx(0)
    assert found(*GEMM, send, DOT, recv, done).moved[0].hidden == pytest.approx(4e6 / 3.125e9)


def test_attention_kernels_take_the_flops_of_their_products():
    """Two forward passes, as with rematerialisation, and a backward pass with five products for two."""
    forward = '%f{} = bf16[8]{{0}} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"'
    backward = '%b1 = bf16[8]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmaxBackward"'
    found = run(forward.format(1), forward.format(2), backward, attention=1e12)
    assert found.flops == pytest.approx((1 + 1 + 2.5) * 1e12)
    splash = '%splash_mha_{}.3 = bf16[8]{{0}} custom-call(%x), custom_call_target="tpu_custom_call"'
    names = ("fwd_segmented", "dq_segmented", "dkv_segmented")
    twice = [splash.format(name) for name in names for _ in range(2)]  # two layers
    assert run(*twice, attention=1e12).flops == pytest.approx((1 + 1.5 + 2) * 1e12)


def test_attention_kernels_in_a_loop():
    """Each of 5 layers has a fifth of the forward pass's FLOPs, and a backward pass of 2.5 times as many."""
    forward = '%f1 = bf16[8]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"'
    backward = '%b1 = bf16[8]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmaxBackward"'
    body = "\n".join(("%body (p: s32[]) -> s32[] {", forward, backward, "}"))
    loop = '%l = s32[] while(%i), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    assert run(loop, more=body, attention=1e12).flops == pytest.approx(3.5e12)


def test_without_rates_times_are_unknown_and_bytes_are_not():
    text = "ENTRY %m (x: f32[8]) -> f32[8] {\n" + "\n".join((*GEMM, start(), DOT, DONE)) + "\n}"
    found = schedule(Program.read(text), None, DEVICES, 0.0)
    assert found.seconds == 0
    assert found.flops == 2 * 8192**3
    assert found.moved[0].size == 16_000_000
