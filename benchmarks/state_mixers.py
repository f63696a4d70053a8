"""Recurrent mixers beside full and windowed attention: time and memory of a gradient by length of text.

    python -m benchmarks.state_mixers [--lengths 1024 2048 4096] [--width 128] [--repeats 3]
    python -m benchmarks.state_mixers --only multi_head window linear --picture=cost.png

One block (4 heads, no feed-forward, float32, one row, random parameters) of each mixer. In each turn every
mixer computes the gradient of one length once; the time is the median. "window" is attention to the last 256
keys. Memory is the temporary memory of the compiled program, without its inputs and outputs: the same on a
busy machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks import common
from transformer.layers.mixers import MIXERS, StateMixer
from transformer.models.decoder import DecoderConfig
from transformer.visualization.run_curves import draw_over_key

NAMES = ["multi_head", "linear", *(name for name, kind in MIXERS.items() if issubclass(kind, StateMixer))]
KEYS: dict[str, dict[str, Any]] = {name: {"mixer": name} for name in NAMES}
KEYS["window"] = {"pattern": "window", "pattern_size": 256}


def gradient(name: str, width: int, length: int) -> tuple[Callable[[], Any], int]:
    """A function that computes the gradient by the parameters, and the bytes that it needs beside them."""
    sizes = {"d_model": width, "num_layers": 1, "num_heads": 4, "max_length": length}
    model = DecoderConfig(**sizes, feed_forward="none", vocab_multiple=1, **KEYS[name]).build(64)
    tokens_1t = jax.random.randint(jax.random.key(0), (1, length), 0, 64)
    params = nn.meta.unbox(jax.jit(model.init)(jax.random.key(1), tokens_1t[:, :1]))["params"]

    def loss(params: dict) -> jax.Array:
        return jnp.mean(jnp.square(model.apply({"params": params}, tokens_1t, method="hidden")))

    compiled = jax.jit(jax.grad(loss)).lower(params).compile()
    return lambda: compiled(params), compiled.memory_analysis().temp_size_in_bytes


def main() -> None:
    """Measures all lengths and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*KEYS], default=[*KEYS])
    parser.add_argument("--picture", type=Path, help="a file for a picture of the times")
    flags = parser.parse_args()
    rows: dict[str, dict[str, object]] = {name: {"mixer": name} for name in flags.only}
    times: dict[str, list[list[float]]] = {name: [] for name in flags.only}
    for length in flags.lengths:
        programs = {name: gradient(name, flags.width, length) for name in flags.only}
        seconds: dict[str, list[float]] = {name: [] for name in flags.only}
        for _ in range(flags.repeats):
            for name, (run, _) in programs.items():
                start = time.perf_counter()
                jax.block_until_ready(run())
                seconds[name].append(time.perf_counter() - start)
        for name in flags.only:
            times[name].append([1e3 * value for value in seconds[name]])
        for name, (_, size) in programs.items():
            rows[name][f"{length:,} tokens, ms"] = f"{1e3 * statistics.median(seconds[name]):,.0f}"
            rows[name][f"{length:,} tokens, MB"] = f"{size / 1e6:,.0f}"
    print(common.machine(), common.table(list(rows.values())), sep="\n\n")
    if flags.picture:
        curves = [(name, flags.lengths, times[name]) for name in flags.only]
        draw_over_key(curves, "tokens", "ms of a gradient of one block", flags.picture)


if __name__ == "__main__":
    main()
