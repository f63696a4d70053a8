"""The speed of attention on a GPU, forward and backward: 32,768 tokens, 16 heads of 64 or 8 of 128, bfloat16,
causal.

    python -m benchmarks.fused_attention [--peer] [--cases 1024x64 8192x128 ...] [--repeats 10]

A case is LENGTHxWIDTH. "ours" is cuDNN's kernel as the models call it, for rows of one document without
marks; "ours_documents" the same for packed documents of 1,000 tokens on average, with their marks as an array
of biases, "ours_columns" with them in columns of queries and keys, "ours_window" a window of 256;
"ours_blockwise" is the kernel that serves what cuDNN does not. "plain_jax" stores all weights, and is left
out where they take more than 8 GB. `--peer` adds PyTorch's `scaled_dot_product_attention`, which takes its
FlashAttention here. "TFLOP/s" counts the allowed half of causal attention, 3.5 times the products of the
forward pass. An implementation whose output differs from that of the others on the same mask ends the
benchmark.
"""

import functools
import importlib
import statistics

import numpy as np

from benchmarks import common
from benchmarks.common import Contestant

TOKENS, MODEL, WINDOW, DOCUMENT = 32_768, 1024, 256, 1000
CASES = tuple(f"{length}x{width}" for width in (64, 128) for length in (1024, 4096, 16384))
MOST_GB = 8.0
PROBES = 64
"""Elements of the output and of each gradient that are compared."""


def shape(case: str) -> tuple[int, int, int, int]:
    """Rows, length, heads and width."""
    length, width = map(int, case.split("x"))
    return TOKENS // length, length, MODEL // width, width


def inputs(case: str) -> list[np.ndarray]:
    """Queries, keys, values and the gradient of the output."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape(case), np.float32) for _ in range(4)]


def documents(case: str) -> np.ndarray:
    """The number of each token's document."""
    rows, length, *_ = shape(case)
    starts = np.random.default_rng(2).random((rows, length)) < 1 / DOCUMENT
    return np.cumsum(starts, axis=1).astype(np.int32)


def probe(arrays) -> list[float]:
    """A few elements of each array, the same for every implementation."""
    places = np.random.default_rng(1).integers(0, arrays[0].size, PROBES)
    return [float(x) for array in arrays for x in np.asarray(array, np.float32).reshape(-1)[places]]


def _jax(attention, case: str):
    import jax
    import jax.numpy as jnp

    def both(dout_bthk, *qkv):
        out_bthk, backward = jax.vjp(attention, *qkv)
        return out_bthk, *backward(dout_bthk)

    *qkv, dout = (jnp.asarray(x, jnp.bfloat16) for x in inputs(case))
    program = jax.jit(both).lower(dout, *qkv).compile()
    numbers = probe(program(dout, *qkv))
    return lambda: jax.block_until_ready(program(dout, *qkv)), {"probe": numbers}


def ours(case: str, kind: str = "cudnn", marked: bool = False, short: int | None = None, window: int = 0):
    from transformer.layers.attention.kernels import KERNELS
    from transformer.layers.attention.masks import Mask
    from transformer.layers.attention.patterns import Window

    if short is not None:
        module = importlib.import_module("transformer.layers.attention.kernels.cudnn")
        module.SHORT, module.MAX_BIAS_ENTRIES = short, 2**62
    segments = documents(case) if marked else None
    mask = Mask(segments, segments, causal=True, pattern=Window(window) if window else None)
    return _jax(functools.partial(KERNELS[kind].attend, mask=mask), case)


def plain_jax(case: str):
    import jax

    rows, length, heads, _ = shape(case)
    if 4 * rows * heads * length**2 > MOST_GB * 2**30:
        return None, {"probe": []}
    return _jax(functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="xla"), case)


def torch(case: str):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    device = common.torch_device()
    *qkv, dout = (torch.from_numpy(x.swapaxes(1, 2).copy()).to(device, torch.bfloat16) for x in inputs(case))
    for x in qkv:
        x.requires_grad_()

    def both():
        out = scaled_dot_product_attention(*qkv, is_causal=True)
        done = out.detach(), *torch.autograd.grad(out, qkv, dout)
        if device == "cuda":
            torch.cuda.synchronize()
        return done

    numbers = probe([x.transpose(1, 2).float().cpu().numpy() for x in both()])
    return both, {"probe": numbers}


CONTESTANTS = {
    "ours": ours,
    "ours_documents": functools.partial(ours, marked=True, short=2**62),
    "ours_columns": functools.partial(ours, marked=True, short=0),
    "ours_window": functools.partial(ours, window=WINDOW),
    "ours_blockwise": functools.partial(ours, kind="blockwise"),
    "plain_jax": plain_jax,
    "torch": torch,
}
MASKS = {"ours_documents": "documents", "ours_columns": "documents", "ours_window": "window"}
"""Masks other than the causal one."""
ANSWERS: dict[tuple[str, str], list[float]] = {}
"""The probes of the first implementation, for each case and mask."""


def work(name: str, case: str) -> None:
    call, report = CONTESTANTS[name](case)
    common.serve(call or (lambda: None), left_out=call is None, **report)


def row(case: str, name: str, contestant: Contestant, first: Contestant, limit: float) -> dict[str, object]:
    report, mask = contestant.report, MASKS.get(name, "")
    cells: dict[str, object] = {"case": case, "who": name}
    if report["left_out"]:
        return cells | dict.fromkeys(("ms", "best", "TFLOP/s", "ours is faster", "GB"), "-")
    if not np.allclose(report["probe"], ANSWERS.setdefault((case, mask), report["probe"]), atol=0.1):
        raise SystemExit(f"{name} {case}: another result than that of ours")
    seconds = statistics.median(contestant.seconds)
    flops = 3.5 * 2 * TOKENS * shape(case)[1] * MODEL
    return cells | {
        "ms": f"{1e3 * seconds:.2f}",
        "best": f"{1e3 * min(contestant.seconds):.2f}",
        "TFLOP/s": "-" if mask else f"{flops / seconds / 1e12:.0f}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "GB": f"{report['memory_gb']:.2f}",
    }


if __name__ == "__main__":
    common.contest("benchmarks.fused_attention", __doc__, CASES, CONTESTANTS, work, row)
