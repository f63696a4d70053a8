"""Greedy decoding beside what a user would pick for it: llama.cpp and CTranslate2, on the exports of one run.

    pip install xllamacpp ctranslate2 transformers torch gguf
    python -m benchmarks.decode_peers --peer [--cases 12M-1 12M-16 88M-1] [--threads 2] [--repeats 5]

A Llama-shaped model is made once under --runs and exported (`--mode=export`): as GGUF for llama.cpp, whose
keys and values are float32 too, and for transformers, whose folder CTranslate2 converts. All read the same
prompts of 32 tokens and write 224, in float32, without stopping; `..._int8` have weights of eight bits.
`ours` is `generate`, one program. "same text" is the share of characters before the first difference from it.

    python -m benchmarks.decode_peers --products

times the product of one row with a float32 matrix alone: as XLA compiles it for one thread, and in a form
that it divides over threads. It shows why one row of a small model is slower than in CTranslate2.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import Contestant

PROMPT, NEW, VOCABULARY = 32, 224, 4096
SIZES = {"12M": (384, 6, 6, 1024), "88M": (768, 12, 12, 2048)}
"""Width, layers, heads and hidden units."""

CASES = {
    name: (size, int(rows))
    for name in ("12M-1", "12M-16", "88M-1")
    for size, _, rows in [name.partition("-")]
}
RUNS, THREADS = "DECODE_PEERS_RUNS", "DECODE_PEERS_THREADS"


def folder(size: str, kind: str = "") -> Path:
    """The run of a size, or its export of a kind; made where it is missing.

    One step at a rate far too high leaves weights whose continuation does not repeat one token.
    """
    run = Path(os.environ[RUNS]) / size
    if not run.exists():
        width, layers, heads, hidden = SIZES[size]
        keys = {
            "data.tokenizer": "bpe",
            "data.vocab_size": VOCABULARY,
            "data.sequence_length": 128,
            "model.feed_forward": "swiglu",
            "model.d_model": width,
            "model.num_layers": layers,
            "model.num_heads": heads,
            "model.d_ff": hidden,
            "model.max_length": PROMPT + NEW,
            "optimizer.learning_rate": 2.0,
            "optimizer.warmup_steps": 0,
            "train.steps": 1,
            "train.batch_size": 1,
            "train.evaluate_every": 0,
            "train.evaluate_batches": 1,
            "train.sample_every": 0,
        }
        launch(
            "--config=configs/lm.py",
            *(f"--config.{key}={value}" for key, value in keys.items()),
            f"--workdir={run}",
        )
    export = run.with_name(f"{size}-{kind}")
    if kind and not export.exists():
        launch("--mode=export", f"--workdir={run}", f"--to={export}", f"--format={kind}", "--family=llama")
    return export if kind else run


def launch(*flags: str) -> None:
    done = subprocess.run([sys.executable, "launch.py", *flags], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"launch.py {' '.join(flags)}: {done.stderr}")


def prompts(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(300, VOCABULARY, (rows, PROMPT)).astype(np.int32)


def ours(size: str, rows: int, weights: str = "") -> Callable[[], list[str]]:
    import jax

    from transformer.decoding.generation import generate
    from transformer.models.transforms.reduced import reduced
    from workdir import api

    run, params = api.load(folder(size))
    experiment: Any = run.experiment
    stepper = experiment.stepper(reduced(params, weights) if weights else params)
    inputs = (
        stepper,
        prompts(rows),
        np.full(rows, PROMPT, np.int32),
        jax.random.split(jax.random.key(0), rows),
    )
    compiled = generate.lower(*inputs, max_new_tokens=NEW, temperature=None).compile()
    return lambda: [
        experiment.data.tokenizer.decode(row.tolist())
        for row in np.asarray(compiled(*inputs, temperature=None)[0])
    ]


def ours_int8(size: str, rows: int) -> Callable[[], list[str]]:
    return ours(size, rows, "int8")


def llama_cpp(size: str, rows: int) -> Callable[[], list[str]]:
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(folder(size, "gguf") / "model.gguf")
    wanted.n_parallel, wanted.n_gpu_layers = rows, 0
    wanted.n_ctx = rows * (PROMPT + NEW + 1)
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = int(os.environ[THREADS])
    wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(wanted)
    options = {"n_predict": NEW, "temperature": 0, "ignore_eos": True, "cache_prompt": False}

    def complete(prompt: list[int]) -> str:
        return server.handle_completions({"prompt": prompt} | options)["choices"][0]["text"]

    def call() -> list[str]:
        with ThreadPoolExecutor(rows) as pool:
            return list(pool.map(complete, prompts(rows).tolist()))

    return call


def ctranslate2(size: str, rows: int, compute: str = "float32") -> Callable[[], list[str]]:
    import ctranslate2
    from transformers import AutoTokenizer

    source = folder(size, "transformers")
    converted = source.with_name(f"{size}-ctranslate2")
    if not converted.exists():
        ctranslate2.converters.TransformersConverter(str(source)).convert(str(converted))
    generator = ctranslate2.Generator(
        str(converted), compute_type=compute, inter_threads=1, intra_threads=int(os.environ[THREADS])
    )
    tokenizer = AutoTokenizer.from_pretrained(source)
    texts = [tokenizer.convert_ids_to_tokens(row) for row in prompts(rows).tolist()]
    options = {"max_length": NEW, "min_length": NEW, "sampling_topk": 1, "include_prompt_in_result": False}
    return lambda: [
        str(tokenizer.decode(row.sequences_ids[0])) for row in generator.generate_batch(texts, **options)
    ]


def ctranslate2_int8(size: str, rows: int) -> Callable[[], list[str]]:
    return ctranslate2(size, rows, "int8")


CONTESTANTS = {f.__name__: f for f in (ours, llama_cpp, ctranslate2, ours_int8, ctranslate2_int8)}


def work(name: str, case: str) -> None:
    call = CONTESTANTS[name](*CASES[case])
    common.serve(call, texts=call())


def row(case: str, name: str, contestant: Contestant, first: Contestant, limit: float) -> dict[str, object]:
    size, rows = CASES[case]
    pairs = list(zip(contestant.report["texts"], first.report["texts"], strict=True))
    same = [
        next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), len(pair[1])) / len(pair[1])
        for pair in pairs
    ]
    return {
        "model": size,
        "rows": rows,
        "who": name,
        "tokens/s": f"{rows * NEW / statistics.median(contestant.seconds):,.0f}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "same text": f"{statistics.mean(same):.0%}",
    }


def products() -> None:
    """Times one row times a matrix, 48 MB of matrices in turn, in a loop as decoding has."""
    import jax
    import jax.numpy as jnp

    print(common.machine())
    rows: list[dict[str, object]] = []
    for inner, outer in ((384, 384), (384, 1024), (768, 2048)):
        count = max(1, 12_000_000 // (inner * outer))
        shapes = {"x @ w": (inner, outer), "x @ w.T": (outer, inner)}
        forms: dict[str, Callable] = {"x @ w": lambda x, w: x @ w, "x @ w.T": lambda x, w: x @ w.T}
        for name, form in forms.items():
            rng = np.random.default_rng(0)
            ws = [jnp.asarray(rng.normal(0, inner**-0.5, shapes[name]), jnp.float32) for _ in range(count)]

            @jax.jit
            def loop(ws, x, form=form, inner=inner):
                def body(_, x):
                    for w in ws:
                        x = jnp.tanh(form(x, w)[:, :inner])
                    return x

                return jax.lax.fori_loop(0, 20, body, x)

            x = jnp.asarray(rng.normal(size=(1, inner)), jnp.float32)
            seconds, processor = [], []
            for _ in range(8):
                start, used = time.perf_counter(), time.process_time()
                loop(ws, x).block_until_ready()
                seconds.append(time.perf_counter() - start)
                processor.append(time.process_time() - used)
            best = int(np.argmin(seconds))
            rate = 20 * count * inner * outer * 4 / seconds[best] / 1e9
            rows.append(
                {
                    "matrix": f"{inner} x {outer}",
                    "form": name,
                    "GB/s": f"{rate:.1f}",
                    "processors used": f"{processor[best] / seconds[best]:.2f}",
                }
            )
    print(common.table(rows))


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--products", action="store_true")
    own.add_argument("--runs", default="runs/decode_peers", help="where the runs and exports are kept")
    own.add_argument("--threads", type=int, default=os.cpu_count(), help="of the peers")
    flags, rest = own.parse_known_args()
    sys.argv[1:] = rest
    os.environ |= {
        RUNS: os.environ.get(RUNS, flags.runs),
        THREADS: os.environ.get(THREADS, str(flags.threads)),
    }
    if flags.products:
        products()
    else:
        common.contest("benchmarks.decode_peers", __doc__, list(CASES), CONTESTANTS, work, row)
