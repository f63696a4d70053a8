"""The speed of attention, forward and backward, by length: batch 1, 6 heads of 64, float32, causal.

    python -m benchmarks.attention [--peer] [--cases 512 4096 ...] [--repeats 5]

"ours" is the blockwise kernel, "ours_documents" the same for packed documents of 512 tokens, and the other
"ours_..." for the sparse patterns of `PATTERNS`, those of "ours_documents_..." in such documents; "plain_jax"
and "plain_window" are `jax.nn.dot_product_attention`, which stores all weights, and are skipped where that
takes more than 8 GB; `--peer` adds PyTorch's `scaled_dot_product_attention` (`pip install torch`).
"computed / allowed" is the number of pairs of a query and a key that are computed, relative to those that the
mask allows. "Temporary MB" is from XLA's memory analysis. An implementation whose output or gradients differ
ends the benchmark.
"""

import functools
import statistics

import numpy as np

from benchmarks import common
from benchmarks.common import Contestant
from transformer.layers.attention.patterns import Blocks, Fixed, Global, Pattern, Strided, Window

HEADS, WIDTH, WINDOW, DOCUMENT = 6, 64, 256, 512
PATTERNS: dict[str, Pattern | None] = {
    "window": Window(WINDOW),
    "dilated": Window(32, dilation=4),
    "global": Global(64, tokens=4),
    "strided": Strided(32),
    "fixed": Fixed(32, summary=4),
    "blocks": Blocks(32),
    "documents": None,
    "documents_global": Global(64, tokens=4),
    "documents_fixed": Fixed(32, summary=4),
    "documents_blocks": Blocks(32),
}
"""Sparse patterns, and full attention and those that count from the start of a document within documents."""
LENGTHS = ("512", "1024", "2048", "4096", "8192")
MOST_GB = 8.0
PROBES = 64
"""Elements of the output and of each gradient that are compared."""


def inputs(length: int) -> list[np.ndarray]:
    """Queries, keys, values and the gradient of the output: (1, length, heads, width) each."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, length, HEADS, WIDTH)).astype(np.float32) for _ in range(4)]


def probe(arrays) -> list[float]:
    """A few elements of each array, the same for every implementation."""
    places = np.random.default_rng(1).integers(0, np.asarray(arrays[0]).size, PROBES)
    return [float(x) for array in arrays for x in np.asarray(array).reshape(-1)[places]]


def _jax(attention, length: int):
    import jax

    def both(q_bthk, k_bsgk, v_bsgk, dout_bthk):
        out_bthk, backward = jax.vjp(attention, q_bthk, k_bsgk, v_bsgk)
        return out_bthk, *backward(dout_bthk)

    arrays = [jax.numpy.asarray(x) for x in inputs(length)]
    program = jax.jit(both).lower(*arrays).compile()
    temporary = program.memory_analysis().temp_size_in_bytes / 2**20
    if temporary > MOST_GB * 2**10:
        return None, {"temporary_mb": temporary, "probe": []}
    numbers = probe(program(*arrays))
    return lambda: jax.block_until_ready(program(*arrays)), {"temporary_mb": temporary, "probe": numbers}


def ours(length: int, name: str = ""):
    import jax.numpy as jnp

    from transformer.layers.attention.kernels import blockwise
    from transformer.layers.attention.kernels.parts import computed_pairs
    from transformer.layers.attention.masks import Mask

    pattern = PATTERNS.get(name)
    document, places = length, None
    if name.startswith("documents"):
        document, places = DOCUMENT, jnp.divmod(jnp.arange(length)[None], DOCUMENT)
    mask = Mask.self_attention(*(places or (None, None)), causal=True).replace(pattern=pattern)
    allowed = 0
    for i in range(length):  # a row at a time, in little memory
        j = np.arange(i % document + 1)
        allowed += len(j) if pattern is None else int(np.sum(pattern(i % document, j)))
    call, report = _jax(lambda *qkv: blockwise(*qkv, mask=mask), length)
    return call, report | {"computed": computed_pairs(mask, 1, length, length) / allowed}


def plain_jax(length: int, window=None):
    import jax

    def attention(*qkv):
        return jax.nn.dot_product_attention(*qkv, is_causal=True, local_window_size=window)

    return _jax(attention, length)


def plain_window(length: int):
    return plain_jax(length, (WINDOW - 1, 0))


def torch(length: int):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    *qkv, dout = (torch.from_numpy(x.swapaxes(1, 2).copy()) for x in inputs(length))
    for x in qkv:
        x.requires_grad_()

    def both():
        out = scaled_dot_product_attention(*qkv, is_causal=True)
        return out.detach(), *torch.autograd.grad(out, qkv, dout)

    numbers = probe([x.transpose(1, 2).contiguous() for x in both()])
    return both, {"temporary_mb": float("nan"), "probe": numbers}


CONTESTANTS = {
    "ours": ours,
    "plain_jax": plain_jax,
    "torch": torch,
    "plain_window": plain_window,
    **{f"ours_{name}": functools.partial(ours, name=name) for name in PATTERNS},
}
ANSWERS: dict[tuple[str, str], list[float]] = {}
"""The probes of the first implementation, for each length and pattern."""


def work(name: str, case: str) -> None:
    call, report = CONTESTANTS[name](int(case))
    waits = [call is not None]  # who was compared has warmed up, so `serve` need not start with a call

    def measured() -> None:
        if call is not None and not (waits and waits.pop()):
            call()

    common.serve(measured, left_out=call is None, **report)


def row(case: str, name: str, contestant: Contestant, first: Contestant, limit: float) -> dict[str, object]:
    report = contestant.report
    if not (left_out := report["left_out"]):
        kind = name.partition("_")[2]
        answer = ANSWERS.setdefault((case, kind if kind in PATTERNS else ""), report["probe"])
        if not np.allclose(report["probe"], answer, rtol=1e-3, atol=1e-4):
            raise SystemExit(f"{name} {case}: another result than that of ours")
    return {
        "length": case,
        "who": name,
        "ms": "-" if left_out else f"{1e3 * statistics.median(contestant.seconds):,.0f}",
        "best": "-" if left_out else f"{1e3 * min(contestant.seconds):,.0f}",
        "ours is faster": "-" if left_out else f"{common.ratio(first, contestant):.2f}x",
        "computed / allowed": f"{report['computed']:.2f}" if "computed" in report else "-",
        "temporary MB": "-" if np.isnan(report["temporary_mb"]) else f"{report['temporary_mb']:,.0f}",
    }


if __name__ == "__main__":
    common.contest("benchmarks.attention", __doc__, LENGTHS, CONTESTANTS, work, row)
