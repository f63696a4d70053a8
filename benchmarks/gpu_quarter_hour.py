"""Everything that a lent GPU should tell, in at most twelve minutes and in the order of worth.

    python -m benchmarks.gpu_quarter_hour --out=FILE [--minutes=12] [--cases gpt2 packed ...] [--tiny]

Each case is a process with a deadline. It starts its contestants, which compile one after another, and lets
them take turns: each turn is a block of consecutive steps of at least 1.5 s that waits for the device only at
its end. Each figure is appended to FILE as a line of JSON, on disk before the next block starts, with the
clock, power and temperature of the GPU. When the time is over, what has not started is left out by name. The
last lines are a table: tokens/s of the median block, MFU by the data sheet, and over the rounds the median
ratio of the first contestant to each that computes as many tokens. A loss that is not finite, or that does
not start near log(vocabulary), ends its contestant.

`--tiny` rehearses all of it with small models, on any machine. `--cases` names some:
"""

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Contestant

MODULE = "benchmarks.gpu_quarter_hour"
BLOCK_S = 1.5
ROUNDS = 5
DOCUMENT = 400
"""Tokens of a packed document on average."""

GPT2 = (
    "configs/papers/gpt2.py",
    *("train.batch_size=16", "model.scan_layers=false", "model.dropout=0", "model.embedding_dropout=0"),
    *("model.attention_dropout=0", "data.vocab_size=50304"),
)
LLAMA_1B = ("configs/papers/llama_1b.py", "data.sequence_length=8192", "train.batch_size=4")


@dataclass(frozen=True)
class Case:
    """A comparison: contestant -> the function that measures it and its arguments; seconds at most."""

    about: str
    contestants: Mapping[str, tuple[str, ...]]
    seconds: int = 150
    rounds: int = field(default=ROUNDS)


def ours(*keys: str, config: tuple[str, ...] = GPT2) -> tuple[str, ...]:
    """A contestant: the train step of a config with these keys."""
    return "train_step", *config, *keys


CASES: dict[str, Case] = {
    "device": Case(
        "rates of products, and of copies",
        {kind: ("rate", kind) for kind in ("bfloat16", "float32", "copy")},
        seconds=60,
    ),
    "gpt2": Case(
        "GPT-2 124M, 16 rows of 1,024 tokens: one document a row, and PyTorch's compiled step",
        {"ours": ours(), "torch_compiled": ("torch_step",)},
        seconds=200,
    ),
    "packed": Case(
        "the same with packed documents: marks as biases, marks as columns, and none",
        {
            "whole": ours(),
            "biases": ours("documents=400", "short=99999999"),
            "columns": ours("documents=400", "short=0"),
        },
    ),
    "changes": Case(
        "keys that change the step of GPT-2 124M and not its function, or only by rounding",
        {
            "as it is": ours(),
            "logits in bfloat16": ours("model.logits_dtype=bfloat16"),
            "8 parts of the vocabulary": ours("loss.vocab_parts=8"),
            "scan": ours("model.scan_layers=true", "model.remat=none"),
            "remat": ours("model.remat=dots"),
        },
        seconds=240,
        rounds=3,
    ),
    "attention": Case(
        "attention alone, 20 calls in one program: cuDNN's kernel, and that for packed documents",
        {
            f"{length}, {kind}": ("attention", length, kind)
            for length in ("1024", "8192")
            for kind in ("whole", "packed")
        },
        seconds=90,
    ),
    "decoding": Case(
        "greedy decoding of 224 tokens after 32: one row of 124M, 16 rows of a small model",
        {
            f"{who} {case}": ("decode", who, case)
            for case in ("M1", "S16")
            for who in ("ours", "torch_gpt_compiled")
        },
        seconds=200,
        rounds=3,
    ),
    "large": Case(
        "355M and 1.2B parameters",
        {
            "gpt2 medium": ours(config=("configs/papers/gpt2.py:medium", *GPT2[1:])),
            "1.2B, rows of 8,192": ours(config=LLAMA_1B),
            "1.2B, without rematerialisation": ours("model.remat=none", config=LLAMA_1B),
        },
        seconds=240,
        rounds=2,
    ),
    "dropout": Case(
        "GPT-2 124M with its dropout, of attention too",
        {
            "none": ours(),
            "0.1": ours(*(f"model.{name}dropout=0.1" for name in ("", "embedding_", "attention_"))),
        },
        rounds=3,
    ),
    "multi30k": Case(
        "the translation model of configs/studies/multi30k, whose rows are as long as they may be",
        {"translation": ours(config=("configs/studies/multi30k/translation_multi30k.py",))},
        seconds=120,
        rounds=3,
    ),
    "kernels": Case("tests of the kernels on this GPU", {"tests": ("tests",)}, seconds=180, rounds=1),
}

TINY = {
    "configs/papers/gpt2.py": "configs/papers/gpt2.py:tiny",
    "configs/papers/llama_1b.py": "configs/papers/llama_1b.py:tiny",
}
TINY_KEYS = {"data.vocab_size", "data.sequence_length", "train.batch_size"}
"""Keys that a rehearsal leaves to the preset."""


def random_batch(shapes: Mapping[str, Any], vocab_size: int, document: int) -> dict[str, Any]:
    """A batch by the names of its arrays: random tokens, and rows of one document, or of documents that have
    `document` tokens on average."""
    import numpy as np

    rng = np.random.default_rng(0)
    batch: dict[str, Any] = {}
    starts_of_shape: dict[Any, Any] = {}
    for name, x in shapes.items():
        starts = starts_of_shape.setdefault(x.shape, rng.random(x.shape) < (1 / document if document else 0))
        segments = 1 + np.cumsum(starts, axis=-1)
        if name.endswith("segments"):
            values = segments
        elif name.endswith("positions"):
            place = np.broadcast_to(np.arange(x.shape[-1]), x.shape)
            values = place if not document else place - np.maximum.accumulate(np.where(starts, place, 0), -1)
        elif np.issubdtype(x.dtype, np.integer) and name not in ("bytes", "mask"):
            values = rng.integers(4, vocab_size, x.shape)
        else:
            values = np.ones(x.shape)
        batch[name] = values.astype(x.dtype)
    return batch


def train_step(config: str, *keys: str) -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """One step of a config's training, on random tokens."""
    import importlib

    import jax

    from transformer.training.logging.throughput import run_flops_per_token
    from workdir.opening import open_without_data, read_config

    overrides = dict(key.split("=", 1) for key in keys)
    document, short = int(overrides.pop("documents", 0)), overrides.pop("short", "")
    if short:
        importlib.import_module("transformer.layers.attention.kernels.cudnn").SHORT = int(short)  # type: ignore[attr-defined]
    run = open_without_data(read_config(config), [*overrides.items()])
    vocab_size = run.experiment.model.vocab_size
    with run.placed():
        batch = run.put(random_batch(run.experiment.batch_shapes(), vocab_size, document))
        state, step = run.first_state(), run.train_step()
    losses: list[Any] = []

    def call() -> Any:
        nonlocal state
        with run.placed():
            state, metrics = step(state, batch)
        losses.append(metrics["loss"].mean)
        return losses[-1]

    began = time.perf_counter()
    first = float(call())
    tokens = run.config.train.batch_size * run.experiment.tokens_per_example
    if abs(first - math.log(vocab_size)) > 2:
        raise SystemExit(
            f"{config}: the first loss is {first:.3f}; expected about {math.log(vocab_size):.3f}"
        )
    report = {
        "compile_s": time.perf_counter() - began,
        "gb": step.memory_gb,
        "tokens": tokens,
        "flops": run_flops_per_token(run) * tokens,
    }
    return call, jax.block_until_ready, report


def torch_step() -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """The compiled step of GPT-2 in PyTorch, in bfloat16, with its fused optimizer and attention."""
    import torch

    from benchmarks.torch_gpt import TorchDecoder

    shape = common.SHAPES["S"] if tiny() else common.ACCELERATOR
    device = common.torch_device()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = TorchDecoder(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.learning_rate, weight_decay=0.1, fused=True)
    tokens = torch.from_numpy(shape.batch_of_tokens()).long().to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    @torch.compile
    def mean_loss(inputs: Any, targets: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            logits = model(inputs)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def call() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = mean_loss(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def wait(loss: Any) -> None:
        if not math.isfinite(loss.item()):
            raise SystemExit("torch: the loss is not finite")

    began = time.perf_counter()
    wait(call())
    return (
        call,
        wait,
        {
            "compile_s": time.perf_counter() - began,
            "tokens": shape.tokens,
            "flops": shape.training_flops(),
        },
    )


def rate(kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """A large product of matrices of a type, or a copy of an array."""
    import jax
    import jax.numpy as jnp

    size = 512 if tiny() else 8192
    a = jnp.ones((size, size), jnp.float32 if kind == "copy" else kind)
    work = (
        (lambda a: a + 1)
        if kind == "copy"
        else lambda a: jnp.matmul(a, a, preferred_element_type=jnp.float32)
    )
    call = jax.jit(work)
    jax.block_until_ready(call(a))
    flops = 0 if kind == "copy" else 2 * size**3
    return lambda: call(a), jax.block_until_ready, {"flops": flops, "bytes": 2 * a.nbytes}


def attention(length: str, kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """Attention, forward and backward, 20 times in one program: each call's queries need the last output."""
    import jax
    import jax.numpy as jnp

    from transformer.layers.attention.kernels import choose
    from transformer.layers.attention.masks import Mask

    t, heads, width = (64 if tiny() else int(length)), 12, 64
    shape = (1 if tiny() else 2**14 // t), t, heads, width
    q, k, v = (jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3))
    segments = random_batch({"segments": jax.ShapeDtypeStruct(shape[:2], jnp.int32)}, 9, DOCUMENT)["segments"]
    mask = Mask.self_attention(jnp.asarray(segments) if kind == "packed" else None, None, causal=True)
    kernel = choose("auto", q, k, v, mask=mask)

    def once(q: jax.Array, _: None) -> tuple[jax.Array, None]:
        out, backward = jax.vjp(lambda q: kernel(q, k, v, mask=mask), q)
        return q + backward(out)[0].astype(q.dtype), None

    call = jax.jit(lambda q: jax.lax.scan(once, q, None, length=20)[0])
    jax.block_until_ready(call(q))
    return lambda: call(q), jax.block_until_ready, {"flops": 20 * 3.5 * 2 * shape[0] * t * t * heads * width}


def decode(who: str, case: str) -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """`benchmarks.decode_speed`, of which a call is a whole completion."""
    from benchmarks import decode_speed

    sizes = decode_speed.CASES["S1" if tiny() else case]
    call, report = decode_speed.CONTESTANTS[who](sizes)
    call()
    return call, lambda tokens: None, report | {"tokens": sizes.batch * sizes.new}


def tests() -> tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]:
    """The kernels' tests; those that need a GPU are skipped without one."""
    file = "tests/layers/attention/test_platform_kernels.py"
    command = [sys.executable, "-m", "pytest", "-n0", "-q", file, "-k", "cudnn_itself", "-m", "not slow"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stdout.splitlines() or [done.stderr])[-1]
    return lambda: None, lambda _: time.sleep(BLOCK_S), {"said": last, "code": done.returncode}


MEASURED: dict[str, Callable[..., tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]]] = {
    each.__name__: each for each in (train_step, torch_step, rate, attention, decode, tests)
}


def tiny() -> bool:
    """Whether this is a rehearsal."""
    return bool(os.environ.get("QUARTER_HOUR_TINY"))


def serve(what: str, *arguments: str) -> None:
    """The contestant's side: builds, reports, and for each line read measures a block of calls."""
    if tiny():
        arguments = tuple(TINY.get(a, a) for a in arguments if a.partition("=")[0] not in TINY_KEYS)
    call, wait, report = MEASURED[what](*arguments)
    least = 0.05 if tiny() else BLOCK_S
    began = time.perf_counter()
    wait(call())
    count = max(1, math.ceil(least / max(time.perf_counter() - began, 1e-6)))
    print(json.dumps(report | {"calls": count, "peak": peak()}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(count):
            last = call()
        wait(last)
        print((time.perf_counter() - began) / count, flush=True)


def peak() -> float | None:
    """The device's FLOP/s in bfloat16 by its data sheet; None for a device that is not in the table."""
    if "jax" not in sys.modules:
        return None
    import jax

    from transformer.training.logging.throughput import peak_of_kind

    rate_of_kind = peak_of_kind(jax.devices()[0].device_kind, "bfloat16")
    return rate_of_kind if rate_of_kind and math.isfinite(rate_of_kind) else None


def gpu_now() -> dict[str, str]:
    """The clock (MHz), power (W) and temperature (°C) of the first GPU; {} without one."""
    names = "clocks.sm,power.draw,temperature.gpu"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader,nounits", "-i", "0"]
        line = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return dict(zip(names.split(","), line.strip().split(", "), strict=True))
    return {}


def append(file: Path, **record: Any) -> None:
    """Appends a line of JSON, which is on disk when this returns."""
    with file.open("a") as out:
        out.write(json.dumps(record) + "\n")
        out.flush()
        os.fsync(out.fileno())


def measure(name: str, file: Path) -> None:
    """One case: starts its contestants, and appends each block's figure to the file."""
    case, started = CASES[name], {}
    for who, (what, *arguments) in case.contestants.items():
        try:
            started[who] = Contestant(MODULE, what, *arguments)
        except SystemExit as error:
            append(file, case=name, who=who, error=str(error))
        else:
            append(file, case=name, who=who, **started[who].report)
    for _ in range(1 if tiny() else case.rounds):
        for who, contestant in [*started.items()]:
            try:
                contestant.measure()
            except SystemExit as error:
                append(file, case=name, who=who, error=str(error))
                del started[who]
            else:
                append(file, case=name, who=who, seconds=contestant.seconds[-1], **gpu_now())
    for contestant in started.values():
        contestant.close()


def rows(records: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """The table: a row for each contestant that was measured or has failed."""
    contestants: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        if "who" in record:
            contestants.setdefault((record["case"], record["who"]), []).append(record)
    blocks = {key: [r["seconds"] for r in some if "seconds" in r] for key, some in contestants.items()}
    tokens = {
        key: next((r["tokens"] for r in some if "tokens" in r), None) for key, some in contestants.items()
    }
    for (case, who), some in contestants.items():
        facts: dict[str, Any] = {name: value for record in some for name, value in record.items()}
        seconds = blocks[case, who]
        first = next(key for key in blocks if key[0] == case)
        row: dict[str, object] = {
            "case": case,
            "who": who,
            **dict.fromkeys(("ms", "tokens/s", "TFLOP/s", "MFU"), "-"),
        }
        if seconds:
            middle, flops = statistics.median(seconds), facts.get("flops", 0)
            row["ms"] = f"{1e3 * middle:.3f}"
            row["tokens/s"] = f"{facts['tokens'] / middle:,.0f}" if "tokens" in facts else "-"
            row["TFLOP/s"] = f"{flops / middle / 1e12:.1f}" if flops else "-"
            row["MFU"] = f"{flops / middle / facts['peak']:.1%}" if flops and facts["peak"] else "-"
        same_work = tokens[first] and tokens[first] == tokens[case, who]
        ratios = [b / a for a, b in zip(blocks[first], seconds, strict=False)] if same_work else []
        row["first is faster"] = f"{statistics.median(ratios):.3f}x" if ratios else "-"
        row["GB"] = f"{facts['gb']:.2f}" if facts.get("gb") else "-"
        row["compile s"] = f"{facts['compile_s']:.0f}" if "compile_s" in facts else "-"
        row["note"] = facts.get("error") or facts.get("said") or ""
        yield row


def main() -> None:
    """Parses flags; measures case after case until the time is over; prints the table."""
    about = "\n".join(f"  {name:10}{case.about}" for name, case in CASES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="the file of figures, which must not exist")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--tiny", action="store_true", help="rehearse with small models")
    flags = parser.parse_args()
    if flags.worker:
        return serve(*flags.worker)
    if flags.out is None:
        parser.error("--out is required")
    if flags.case:
        return measure(flags.case, flags.out)
    if flags.out.exists():
        parser.error(f"--out: {flags.out} exists; name a new file")
    os.environ |= {**common.SHARED, **({"QUARTER_HOUR_TINY": "1"} if flags.tiny else {})}
    end = time.monotonic() + 60 * flags.minutes
    append(flags.out, machine=common.machine(), command=" ".join(sys.argv), **gpu_now())
    for name in flags.cases:
        left = end - time.monotonic()
        if left < 20:
            append(flags.out, case=name, left_out="the time is over")
            continue
        command = [sys.executable, "-m", MODULE, f"--case={name}", f"--out={flags.out}"]
        child = subprocess.Popen(command, start_new_session=True)
        try:
            child.wait(min(left, 600 if flags.tiny else CASES[name].seconds))
        except subprocess.TimeoutExpired:
            append(flags.out, case=name, left_out="not finished within its time")
        finally:  # with the contestants, which are of its session
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    records = [json.loads(line) for line in flags.out.read_text().splitlines()]
    print(records[0]["machine"])
    print(common.table(measured) if (measured := [*rows(records)]) else "nothing was measured")
    for record in records:
        if "left_out" in record:
            print(f"{record['case']}: {record['left_out']}")
    return None


if __name__ == "__main__":
    main()
