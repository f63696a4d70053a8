"""A peer: causal attention of packed documents in PyTorch, by its kernel for sequences of several lengths."""

import itertools
from collections.abc import Callable
from typing import Any


def torch_attention(length: str, kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """The work of `benchmarks.gpu_cases.attention` on the same documents: 20 times forward and backward."""
    import torch

    from benchmarks import common
    from benchmarks.gpu_cases import DOCUMENT, tiny

    t, heads, width = (64 if tiny() else int(length)), 12, 64
    rows, device = (1 if tiny() else 2**14 // t), common.torch_device()
    torch.manual_seed(0)
    q, k, v = torch.randn(3, rows * t, heads, width, dtype=torch.bfloat16, device=device)
    starts = torch.tensor(document_starts(rows, t, DOCUMENT if kind == "packed" else 0), device=device)
    longest = int(starts.diff().max())  # read once: each reading would wait for the GPU

    def call() -> Any:
        out_q = q
        for _ in range(20):
            at_q = out_q.detach().requires_grad_()
            out = of_documents(at_q, k, v, starts, longest)
            out_q = at_q.detach() + torch.autograd.grad(out, at_q, out)[0]
        return out_q

    def wait(out: Any) -> None:
        if not torch.isfinite(out[0]).all().item():
            raise SystemExit("torch: attention is not finite")

    wait(call())
    return call, wait, {"flops": 20 * 3.5 * 2 * rows * t * t * heads * width}


def document_starts(rows: int, t: int, document: int) -> list[int]:
    """The first token of each document of (rows, t) tokens, in one count over all rows, and the end."""
    import jax
    import numpy as np

    from benchmarks.gpu_cases import random_batch

    shape = {"segments": jax.ShapeDtypeStruct((rows, t), np.dtype("int32"))}
    segments_bt = random_batch(shape, 9, document)["segments"]
    first_bt = np.diff(segments_bt, axis=1, prepend=0) > 0
    return [*np.flatnonzero(first_bt).tolist(), rows * t]


def of_documents(q: Any, k: Any, v: Any, starts: Any, longest: int) -> Any:
    """Causal attention (tokens, heads, width) within documents of at most `longest` tokens, each from its
    start to the next one."""
    import torch

    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        causal = {"window_size": (-1, 0)}
        return varlen_attn(q, k, v, starts.int(), starts.int(), longest, longest, **causal)
    attend = torch.nn.functional.scaled_dot_product_attention
    documents = [
        attend(*(x[a:b].transpose(0, 1) for x in (q, k, v)), is_causal=True).transpose(0, 1)
        for a, b in itertools.pairwise(starts.tolist())
    ]
    return torch.cat(documents)
