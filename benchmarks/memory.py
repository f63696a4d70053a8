"""Memory and time of a training step under options that save memory.

    python -m benchmarks.memory [--cases float32 remat-full ...] [--repeats 2] [--length 2048]

One language model (6 layers, d_model 384, 6 heads, vocabulary 8192, batch 1) under the library's training
step. Each row of the table makes the changes it names to the first row. "Step GB" is from XLA's memory
analysis: arguments (parameters and Adam's two moments), results and temporary buffers. On a CPU device memory
is host memory, so `offload` saves nothing.
"""

import argparse
import dataclasses
import statistics
from typing import Any

from benchmarks import common
from benchmarks.common import Contestant, Shape

SHAPE = Shape(num_layers=6, d_model=384, num_heads=6, length=2048, batch=1, vocab_size=8192)
REMATS = ("full", "dots", "dots_no_batch", "attention", "offload")
CHUNK = 256

CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "reference": {"kernel": "reference"},
    "unrolled": {"kernel": "unrolled"},
    f"chunks-{CHUNK}": {"chunk_size": CHUNK},
    **{f"remat-{remat}": {"remat": remat} for remat in REMATS},
    "no-scan": {"scan_layers": False},
    "no-scan-remat-full": {"scan_layers": False, "remat": "full"},
}
"""Changes to the first row: float32, blockwise attention, a scan over layers, logits in one chunk."""


def step_of(shape: Shape, *, chunk_size: int = 0, **changes: Any):
    """A compiled training step, and a function that runs it on a state of its own."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn

    from transformer.models.decoder import Decoder, DecoderConfig
    from transformer.training.losses.token_losses import LossConfig, token_losses
    from transformer.training.state import State
    from transformer.training.step import make_train_step

    config = {"kernel": "blockwise", "scan_layers": True, "max_length": shape.length} | changes
    sizes = {name: getattr(shape, name) for name in ("d_model", "num_layers", "num_heads")}
    model = Decoder(DecoderConfig(**sizes, norm="layer", d_ff=4 * shape.d_model, **config), shape.vocab_size)

    class Objective:
        def loss(self, params, batch, rng, train):
            bound = model.bind({"params": params})
            x_btd = bound.hidden(batch["tokens"], train=train)
            loss = LossConfig(chunk_size=chunk_size)
            return token_losses(bound.unembed, x_btd, batch, loss, shape.vocab_size, train)

        def weigh(self, batch):
            return {"loss": jnp.sum(batch["weights"])}

    tokens = jnp.asarray(shape.batch_of_tokens())
    batch = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": jnp.ones((shape.batch, shape.length), jnp.float32),
    }
    optimizer = optax.adamw(1e-3, weight_decay=0.1)
    init = jax.jit(lambda: nn.meta.unbox(model.init(jax.random.key(0), batch["tokens"][:, :1]))["params"])
    state = State.create(init(), optimizer, ema=False)
    step = jax.jit(make_train_step(Objective(), optimizer, seed=0), donate_argnums=0)
    program = step.lower(state, batch).compile()

    def call() -> float:
        nonlocal state
        state, metrics = program(state, batch)
        return float(metrics["loss"].mean)

    return program, call


def work(case: str, length: int) -> None:
    program, call = step_of(dataclasses.replace(SHAPE, length=length), **CASES[case])
    from transformer.training.step import memory_gb

    temp_gb = program.memory_analysis().temp_size_in_bytes / 2**30
    done = [call()]  # `serve` starts with this call
    report = {"temp_gb": temp_gb, "step_gb": memory_gb(program), "loss": done[0]}
    common.serve(lambda: done.pop() if done else call(), **report)


def row(case: str, contestant: Contestant, first: Contestant) -> dict[str, object]:
    report, loss = contestant.report, first.report["loss"]
    if abs(report["loss"] - loss) > (0.05 if "dtype" in CASES[case] else 1e-3):
        raise SystemExit(f"{case}: a loss of {report['loss']}, where {next(iter(CASES))} has {loss}")
    return {
        "case": case,
        "step GB": f"{report['step_gb']:.2f}",
        "of it temporary GB": f"{report['temp_gb']:.2f}",
        "of the first's": f"{report['step_gb'] / first.report['step_gb']:.0%}",
        "s/step": f"{statistics.median(contestant.seconds):.1f}",
        "most resident GB": f"{report['memory_gb']:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--length", type=int, default=SHAPE.length)
    flags = parser.parse_args()
    if flags.worker:
        return work(flags.worker, flags.length)
    print(common.machine(), flush=True)
    rows = []
    first = None
    for case in flags.cases:
        # One process after another: two may not fit into memory.
        contestant = Contestant("benchmarks.memory", case, "--length", str(flags.length))
        common.alternate({case: contestant}, flags.repeats)
        contestant.close()
        first = first or contestant
        rows.append(row(case, contestant, first))
        print(rows[-1], flush=True)
    print(common.table(rows))
    return None


if __name__ == "__main__":
    main()
