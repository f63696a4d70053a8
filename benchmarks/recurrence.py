"""Evaluation of a Transformer-XL with memory, compared with recomputing the context of every token.

    python -m benchmarks.recurrence [--memory 512] [--segment 128] [--repeats 5]

A Transformer-XL (6 layers, d_model 384, 6 heads, vocabulary 256, float32, random parameters). With memory, a
segment attends to itself and to cached keys and values of the `memory` tokens before it. Without memory, each
token needs its own forward pass over `memory` + `segment` / 2 tokens, the mean context above (Dai et al.
2019, section 3.2 and table 9).
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from benchmarks import common
from transformer.models.transformer_xl import Memory, TransformerXLConfig


def main() -> None:
    """Measures both in turns and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("memory", 512), ("segment", 128), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    flags = parser.parse_args()
    config = TransformerXLConfig(
        norm="layer",
        d_model=384,
        num_layers=6,
        num_heads=6,
        d_ff=1536,
        memory_length=flags.memory,
        vocab_multiple=1,
    )
    model = config.build(256)
    variables = nn.meta.unbox(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    context = flags.memory + flags.segment // 2
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, 256, (1, flags.memory + flags.segment)), jnp.int32)
    ones = jnp.ones((1, flags.segment), jnp.int32)

    @jax.jit
    def with_memory(tokens_bt: jax.Array, memory: Memory) -> tuple[jax.Array, Memory]:
        x_btd, memory = model.apply(variables, tokens_bt, memory, segments_bt=ones, method="recur")
        return model.apply(variables, x_btd, method="unembed"), memory

    @jax.jit
    def recomputed(tokens_bt: jax.Array) -> jax.Array:
        x_btd = model.apply(variables, tokens_bt, method="hidden")
        return model.apply(variables, x_btd[:, -1:], method="unembed")

    memory = Memory.empty(config, 1, flags.memory)
    for start in range(0, flags.memory, flags.segment):
        _, memory = with_memory(tokens[:, start : start + flags.segment], memory)
    calls = {
        "memory": (lambda: with_memory(tokens[:, -flags.segment :], memory)[0], flags.segment),
        "recomputed": (lambda: recomputed(tokens[:, :context]), 1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(flags.repeats + 1):
        for name, (call, count) in calls.items():
            start = time.perf_counter()
            call().block_until_ready()
            if turn:  # the first one compiles
                seconds[name].append((time.perf_counter() - start) / count)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    rows: list[dict[str, object]] = [
        {
            "context of each token": name,
            "tokens/s": f"{1 / value:,.1f}",
            "times as fast": f"{middle['recomputed'] / value:,.0f}",
        }
        for name, value in middle.items()
    ]
    print(common.machine(), common.table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
