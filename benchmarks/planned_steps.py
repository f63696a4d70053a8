"""Plans of `--mode=plan` compared with train steps on the devices of this machine.

    python -m benchmarks.planned_steps [--cases gpt2 llama_1b ...] [--repeats 20]

Plans each case, then runs the same step on random tokens, whole rows of one document; no data are read. "ms"
is the median of steps that follow one another, as in training, each with the loss of the one before it
fetched. "GB" is the most that JAX's allocator has given to the process, of 10^9 bytes; "reached" is the
planned time at the full rates of the data sheet, relative to the measured one: the `--efficiency` with which
the plan had been right. A loss that does not start near log(vocabulary) and fall ends the benchmark.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import common

WITHOUT_DROPOUT = tuple(f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "embedding_dropout"))
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpt2": ("configs/papers/gpt2.py", ("train.batch_size=16", *WITHOUT_DROPOUT)),
    "gpt2-dropout": ("configs/papers/gpt2.py", ("train.batch_size=16",)),
    "gpt2-dropout-unrolled": ("configs/papers/gpt2.py", ("train.batch_size=16", "model.kernel=unrolled")),
    "gpt2-medium": ("configs/papers/gpt2.py:medium", ("train.batch_size=16", *WITHOUT_DROPOUT)),
    "llama_1b": ("configs/papers/llama_1b.py", ("train.batch_size=1",)),
    "llama_1b-muon": ("configs/papers/llama_1b.py", ("train.batch_size=1", "optimizer.name=contrib.muon")),
    "lm": ("configs/lm.py", ("train.batch_size=2", "data.tokenizer=bytes")),
}
"""Name -> config and keys. The last one is small enough for CPUs."""

SOON = "optimizer.warmup_steps=1"
"""A key that lets the loss fall within a few steps."""

WARM_UP = 5


def rows(run: Any) -> dict[str, Any]:
    """A batch of random tokens, in rows of one document."""
    import numpy as np

    rng, made = np.random.default_rng(0), {}
    for name, array in run.experiment.batch_shapes().items():
        made[name] = np.ones(array.shape, array.dtype)
        if name in ("tokens", "targets"):
            made[name] = rng.integers(0, run.experiment.model.vocab_size, array.shape).astype(array.dtype)
        elif name == "positions":
            made[name][:] = np.arange(array.shape[-1])
    return made


def measure(case: str, repeats: int) -> dict[str, Any]:
    """The plan of a case, and the time and memory of its steps."""
    import jax

    from transformer.planning.plan import make_plan
    from workdir.opening import open_without_data, read_config

    config, keys = CASES[case]
    run = open_without_data(read_config(config), [tuple(key.split("=", 1)) for key in (*keys, SOON)])
    plan, step = make_plan(run, efficiency=1.0), run.compiled()
    with run.placed():
        state, batch, losses, seconds = run.first_state(), run.put(rows(run)), [], []
        for _ in range(WARM_UP):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"].mean))
        if not (abs(losses[0] - math.log(run.experiment.model.vocab_size)) < 1.5 and losses[-1] < losses[0]):
            raise SystemExit(f"{case}: losses {losses} do not start at log(vocabulary) and fall")
        for _ in range(repeats):  # one step is on its way while the loss of the one before it is fetched
            start = time.perf_counter()
            state, following = step(state, batch)
            float(metrics["loss"].mean)
            metrics = following
            seconds.append(time.perf_counter() - start)
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "planned": plan.seconds,
        "bound": plan.schedule.bound,
        "gb": plan.memory.total / 1e9,
        "flops": plan.model_flops,
        "peak": plan.peak,
        "attention": plan.attention.removeprefix("attention: "),
        "seconds": statistics.median(seconds),
        "used": stats.get("peak_bytes_in_use", math.nan) / 1e9,
        "machine": common.machine(),
    }


def row(case: str, figures: dict[str, Any]) -> dict[str, object]:
    """A row of the table."""
    known = figures["planned"] > 0
    return {
        "case": case,
        "attention": figures["attention"],
        "planned GB": f"{figures['gb']:.2f}",
        "GB": "-" if math.isnan(figures["used"]) else f"{figures['used']:.2f}",
        "ms": f"{1e3 * figures['seconds']:.1f}",
        "MFU": f"{figures['flops'] / figures['peak'] / figures['seconds']:.1%}" if known else "-",
        "planned ms at full rates": f"{1e3 * figures['planned']:.1f}" if known else "-",
        "bound": figures["bound"] if known else "-",
        "reached": f"{figures['planned'] / figures['seconds']:.0%}" if known else "-",
    }


def main() -> None:
    """Parses flags, measures each case in a process of its own, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=[*CASES])
    parser.add_argument("--repeats", type=int, default=20)
    flags = parser.parse_args()
    if flags.worker:
        print(json.dumps(measure(flags.worker, flags.repeats)))
        return
    table = []
    with tempfile.TemporaryDirectory() as cache:  # the step is compiled for its plan and again to be run
        variables = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
        for case in flags.cases:
            command = [sys.executable, "-m", "benchmarks.planned_steps", f"--worker={case}"]
            command += [f"--repeats={flags.repeats}"]
            done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                print(f"{case}: ended with code {done.returncode}", flush=True)
                continue
            figures = json.loads(done.stdout.splitlines()[-1])
            table.append(row(case, figures))
            print(figures["machine"], *table[-1].values(), sep=" | ", flush=True)
    if table:
        print("", common.table(table), sep="\n")


if __name__ == "__main__":
    main()
