"""The speed of a mixture of 8 experts, 2 for each token, forward and backward, by the number of tokens.

    python -m benchmarks.experts [--peer] [--cases 512 4096] [--repeats 5]

d_model 512, SwiGLU of 1,024, float32, no biases, one row. "ours" computes every token, in blocks of its
expert; "ours_xla" the same by XLA's own grouped product (`jax.lax.ragged_dot`), and "ours_capacity" at most
1.25 times an expert's share of tokens. "plain" is what a model without experts computes with as many weights
for each token: SwiGLU of 2,048. `--peer` adds PyTorch (`pip install torch`): tokens sorted by expert, and a
product for the rows of each. "of the least" are the FLOPs of the compiled program, relative to those that the
chosen experts need. An implementation whose output or gradients differ ends the benchmark.
"""

import functools
import math
import statistics

import numpy as np

from benchmarks import common
from benchmarks.common import Contestant

WIDTH, HIDDEN, EXPERTS, CHOSEN = 512, 1024, 8, 2
PROBES = 64
"""Elements of the output and of each gradient that are compared."""
NAMES = ("gate", "up", "down")


def inputs(tokens: int) -> dict[str, np.ndarray]:
    """The tokens, the gradient of the output, and the kernels: of the router, and of each expert."""
    rng = np.random.default_rng(0)
    shapes = {"x": (tokens, WIDTH), "dy": (tokens, WIDTH), "router": (WIDTH, EXPERTS)}
    shapes |= {name: (EXPERTS, WIDTH, HIDDEN) for name in ("gate", "up")} | {"down": (EXPERTS, HIDDEN, WIDTH)}
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {
        name: array if name in ("x", "dy") else array / math.sqrt(array.shape[-2])
        for name, array in drawn.items()
    }


def probe(arrays) -> list[float]:
    """A few elements of each array, the same for every implementation."""
    rng = np.random.default_rng(1)
    flat = [np.asarray(array).reshape(-1) for array in arrays]
    return [float(x) for array in flat for x in array[rng.integers(0, array.size, PROBES)]]


def least(tokens: int) -> float:
    """The FLOPs that the chosen experts need, forward and backward."""
    return 3 * 2 * tokens * CHOSEN * 3 * WIDTH * HIDDEN


def _jax(module, params, tokens: int, compared: bool):
    import jax

    from transformer.planning.hlo import Program, walk

    arrays = inputs(tokens)
    x_btd, dy_btd = arrays["x"][None], arrays["dy"][None]

    def layer(params, x_btd):
        return module.apply({"params": params}, x_btd, train=True)

    def both(params, x_btd):
        y_btd, back = jax.vjp(layer, params, x_btd)
        return y_btd, *back(dy_btd)

    program = jax.jit(both).lower(params, x_btd).compile()
    read = Program.read(program.as_text())
    flops = sum(
        times * sum(read.flops(name, instruction).values())
        for name, instruction, times in walk(read, read.entry)
    )
    params, x_btd = jax.device_put((params, x_btd))
    y_btd, d_params, dx_btd = program(params, x_btd)
    results = [y_btd, dx_btd, *(d_params["experts"][name]["kernel"] for name in NAMES)] if compared else []
    report = {"flops": flops / least(tokens), "probe": probe(results)}
    return lambda: jax.block_until_ready(program(params, x_btd)), report


def ours(tokens: int, factor: float = 0.0):
    from transformer.layers.feed_forward import FEED_FORWARDS
    from transformer.layers.variants.experts import Experts

    arrays = inputs(tokens)
    network = functools.partial(FEED_FORWARDS["swiglu"], d_ff=HIDDEN, use_bias=False)
    params = {
        "router": {"kernel": arrays["router"]},
        "experts": {name: {"kernel": arrays[name]} for name in NAMES},
    }
    return _jax(Experts(network, EXPERTS, CHOSEN, factor), params, tokens, compared=not factor)


def ours_xla(tokens: int):
    from transformer.layers.variants import grouped

    grouped.rows_of_blocks = lambda n, groups: 0
    return ours(tokens)


def plain(tokens: int):
    from transformer.layers.feed_forward import FEED_FORWARDS

    arrays = inputs(tokens)
    wide = [arrays["gate"], arrays["up"]]
    gate, up = (np.concatenate(kernel[:CHOSEN], axis=1) for kernel in wide)
    params = {"gate": gate, "up": up, "down": np.concatenate(arrays["down"][:CHOSEN])}
    module = FEED_FORWARDS["swiglu"](d_ff=CHOSEN * HIDDEN, use_bias=False)
    return _jax(module, {name: {"kernel": kernel} for name, kernel in params.items()}, tokens, compared=False)


def torch(tokens: int):
    import torch
    from torch.nn.functional import silu

    tensors = {
        name: torch.from_numpy(array).requires_grad_(name != "dy") for name, array in inputs(tokens).items()
    }
    x, dy = tensors["x"], tensors["dy"]

    def both():
        weights, experts = torch.softmax(x @ tensors["router"], dim=-1).topk(CHOSEN)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        rows = x[order // CHOSEN].split(torch.bincount(experts.flatten(), minlength=EXPERTS).tolist())
        parts = [
            (silu(array @ tensors["gate"][i]) * (array @ tensors["up"][i])) @ tensors["down"][i]
            for i, array in enumerate(rows)
        ]
        out = torch.cat(parts) * weights.flatten()[order][:, None]
        y = torch.zeros_like(x).index_add(0, order // CHOSEN, out)
        return y.detach(), *torch.autograd.grad(y, [x, *(tensors[name] for name in (*NAMES, "router"))], dy)

    return both, {"flops": float("nan"), "probe": probe(both()[:-1])}


CONTESTANTS = {
    "ours": ours,
    "ours_xla": ours_xla,
    "ours_capacity": functools.partial(ours, factor=1.25),
    "plain": plain,
    "torch": torch,
}


def work(name: str, case: str) -> None:
    call, report = CONTESTANTS[name](int(case))
    common.serve(call, **report)


def row(case: str, name: str, contestant: Contestant, first: Contestant, limit: float) -> dict[str, object]:
    report = contestant.report
    if report["probe"] and not np.allclose(report["probe"], first.report["probe"], rtol=1e-3, atol=1e-3):
        raise SystemExit(f"{name} {case}: another result than that of ours")
    return {
        "tokens": case,
        "who": name,
        "ms": f"{1e3 * statistics.median(contestant.seconds):,.1f}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "of the least": "-" if np.isnan(report["flops"]) else f"{report['flops']:.2f}",
    }


if __name__ == "__main__":
    common.contest("benchmarks.experts", __doc__, ("512", "4096"), CONTESTANTS, work, row)
