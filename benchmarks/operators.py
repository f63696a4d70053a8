"""Where the time of a training step goes: the operations of the compiled program, by XLA's own profile.

    python -m benchmarks.operators [--cases S-float32 M-bfloat16 ...] [--top 25] [--products]

Each row is a kind of operation at one place of the model, summed over the layers: milliseconds in a step,
their share of the profile, the number of operations, the result and, for matrix products, the operands'
types. Operations run side by side on several cores, so that their sum is more than the time of a step.
In float32 products over the first axes, of which the profile sees only the start, are not counted.
`--products` instead prints the rates of single products and sums, in the layouts that a step needs.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import common, train_speed
from transformer.runtime import MALLOC

STEPS = 3


def operators(case: str, top: int) -> list[dict[str, object]]:
    """The rows of one case, the longest first."""
    import jax

    size, dtype = train_speed.CASES[case]
    lowered, state, batch = train_speed.our_step(train_speed.SIZES[size], dtype)
    step = lowered.compile()
    for _ in range(train_speed.WARM_UP):
        state, _ = jax.block_until_ready(step(state, batch))
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # which would take a third of the time
        jax.profiler.start_trace(folder, profiler_options=options)
        start = time.perf_counter()
        for _ in range(STEPS):
            state, _ = jax.block_until_ready(step(state, batch))
        seconds = (time.perf_counter() - start) / STEPS
        jax.profiler.stop_trace()
        trace = jax.profiler.ProfileData.from_file(str(next(Path(folder).rglob("*.xplane.pb"))))
    spent: Counter[tuple[str, str, str]] = Counter()
    times: Counter[tuple[str, str, str]] = Counter()
    places = operations(step.as_text())
    for event in (event for plane in trace.planes for line in plane.lines for event in line.events):
        name = dict(event.stats).get("hlo_op")
        if name in places:
            spent[places[name]] += event.duration_ns / 1e6 / STEPS
            times[places[name]] += 1
    return [
        {
            "step": f"{case}, {seconds:.2f} s",
            "ms": f"{milliseconds:.0f}",
            "share": f"{milliseconds / sum(spent.values()):.1%}",
            "times": times[place] // STEPS,
            "operation": place[0],
            "result": place[1],
            "place": place[2],
        }
        for place, milliseconds in spent.most_common(top)
    ]


def operations(program: str) -> dict[str, tuple[str, str, str]]:
    """Operation of a compiled program -> (its kind or, of a product, the operands' types, result, place in
    the model without the layer's number)."""
    bodies = dict(re.findall(r"^%?([\w.\-]+) \(.*?\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL))
    by_name = {}
    for name, result, rest in re.findall(r"^ *(?:ROOT )?%?([\w.\-]+) = (\S+) (.*)$", program, re.MULTILINE):
        kind = re.sub(r"[.\d]+$", "", name)
        body = re.search(r"calls=%?([\w.\-]+)", rest)
        if body and " dot(" in bodies.get(body[1], ""):
            kind = " x ".join(re.findall(r"= (\w+)\[.*?parameter", bodies[body[1]]))
        path = (re.search(r'op_name="([^"]*)"', rest) or ["", ""])[1]
        place = re.sub(r"jit\(train_step\)/|Decoder\.hidden/|block_\d+/|Block/", "", path)
        by_name[name] = kind, re.sub(r"\{.*", "", result), place[-90:]
    return by_name


def products() -> list[dict[str, object]]:
    """Rates of products of matrices, and of sums over rows, in the layouts of a training step."""
    import jax
    import jax.numpy as jnp

    from transformer.layers.dot import by_rows

    n, d, f = 4096, 384, 1536

    def dot(a, b, left, right):
        return jax.lax.dot_general(a, b, (((left,), (right,)), ((), ())), preferred_element_type=jnp.float32)

    def bias_gradient(dy, dtype):
        dy = dy.reshape(16, -1, f)
        add = lambda bias: (dy.astype(dtype) + bias.astype(dtype)).astype(dy.dtype)  # noqa: E731
        return jax.vjp(add, jnp.zeros(f))[1](dy)[0]

    forms = {
        "x W": (lambda x, w, dy: dot(x, w, 1, 0), 2 * n * d * f),
        "dy W^T": (lambda x, w, dy: dot(dy, w, 1, 1), 2 * n * d * f),
        "x^T dy, summed over the first axes": (lambda x, w, dy: dot(x, dy, 0, 0), 2 * n * d * f),
        "x^T dy, x^T copied": (lambda x, w, dy: dot(by_rows(x.T), dy, 1, 0), 2 * n * d * f),
        "dy (W^T)^T, W^T a view": (lambda x, w, dy: dot(dy, w.T, 1, 0), 2 * n * d * f),
        "sum of dy, the gradient of x + bias": (lambda x, w, dy: bias_gradient(dy, dy.dtype), n * f),
        "the same in float32": (lambda x, w, dy: bias_gradient(dy, jnp.float32), n * f),
    }
    rows = []
    for name, (form, flops) in forms.items():
        row: dict[str, object] = {"operation": name}
        for dtype in ("float32", "bfloat16"):
            keys = jax.random.split(jax.random.key(0), 3)
            arrays = [
                jax.random.normal(key, shape).astype(dtype)
                for key, shape in zip(keys, ((n, d), (d, f), (n, f)), strict=True)
            ]
            run, seconds = jax.jit(form), []
            for _ in range(20):
                start = time.perf_counter()
                jax.block_until_ready(run(*arrays))
                seconds.append(time.perf_counter() - start)
            row |= {
                f"{dtype} ms": f"{1e3 * min(seconds):.2f}",
                f"{dtype} GFLOP/s": f"{flops / min(seconds) / 1e9:.0f}",
            }
        rows.append(row)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=train_speed.CASES, default=train_speed.FOR_CPUS)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--products", action="store_true")
    flags = parser.parse_args()
    if not MALLOC.items() <= os.environ.items():  # malloc reads its settings when a process starts
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **MALLOC})
    print(common.machine(), flush=True)
    if flags.products:
        print(common.table(products()))
    for case in () if flags.products else flags.cases:
        print(common.table(operators(case, flags.top)), flush=True)
