"""The cases of `benchmarks.gpu_quarter_hour`, and the functions that build their contestants. Each returns a
call, a function that waits for the last of several calls, and a report."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import common
from benchmarks.torch_attention import torch_attention

BLOCK_S = 1.5
"""Seconds of a block of calls, at least."""

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
        "attention alone, 20 calls: cuDNN's kernel, that for packed documents, and PyTorch's",
        {
            f"{length}, {kind}, {who}": (who, length, kind)
            for length in ("1024", "8192")
            for kind in ("whole", "packed")
            for who in ("attention", "torch_attention")
        },
        seconds=120,
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
    each.__name__: each for each in (train_step, torch_step, rate, attention, torch_attention, decode, tests)
}


def tiny() -> bool:
    """Whether this is a rehearsal."""
    return bool(os.environ.get("QUARTER_HOUR_TINY"))
