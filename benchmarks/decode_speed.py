"""The speed of greedy decoding: tokens/s, share of the machine's peak, memory, compile time.

    python -m benchmarks.decode_speed [--peer] [--cases S1 S16 M1 S16-992] [--repeats 5]

A prompt of 32 tokens and 224 new ones or 992, float32, without early stopping. `ours` is `generate`, one
program with a cache of fixed size; `ours_growing` is `TextGenerator`, as launch.py samples, whose cache grows
when more than 256 tokens are new. `--peer` adds PyTorch (`pip install torch transformers`) with the same
weights: GPT-2 as people write it by hand, with a KV cache of fixed size, eager and with `torch.compile`, and
`generate` of Hugging Face transformers with its dynamic cache. The table has the share of equal tokens.

The ceiling of a step is the longer of two times measured on this machine: reading all weights once, by
matrix-vector products of the same total size, and multiplying at the rate of large matrix products.
"""

import dataclasses
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common
from benchmarks.common import SHAPES, Contestant, Shape

PROMPT, NEW = 32, 224


class Case(NamedTuple):
    """The size of the model, the number of rows, and the new tokens of each."""

    size: str
    batch: int
    new: int = NEW

    @property
    def shape(self) -> Shape:
        """The model, with all tokens in its context."""
        return dataclasses.replace(SHAPES[self.size], length=PROMPT + self.new)


CASES = {"S1": Case("S", 1), "S16": Case("S", 16), "M1": Case("M", 1), "S16-992": Case("S", 16, 992)}


def weights(shape: Shape) -> dict[str, np.ndarray]:
    """Random parameters by path, block parameters stacked, the same in every process.

    They are several times larger than initial weights, whose greedy continuation would repeat one token.
    """
    n, d, f, h = shape.num_layers, shape.d_model, 4 * shape.d_model, shape.num_heads
    sizes = {
        "embedding/table": (shape.vocab_size, d),
        "position/table": (shape.length, d),
        "blocks/attention/query/kernel": (n, d, h, d // h),
        "blocks/attention/key/kernel": (n, d, h, d // h),
        "blocks/attention/value/kernel": (n, d, h, d // h),
        "blocks/attention/output/kernel": (n, h, d // h, d),
        "blocks/feed_forward/up/kernel": (n, d, f),
        "blocks/feed_forward/down/kernel": (n, f, d),
        "blocks/attention/query/bias": (n, h, d // h),
        "blocks/attention/key/bias": (n, h, d // h),
        "blocks/attention/value/bias": (n, h, d // h),
        "blocks/attention/output/bias": (n, d),
        "blocks/feed_forward/up/bias": (n, f),
        "blocks/feed_forward/down/bias": (n, d),
        "blocks/attention_norm/bias": (n, d),
        "blocks/feed_forward_norm/bias": (n, d),
        "final_norm/bias": (d,),
    }
    rng = np.random.default_rng(0)
    drawn = {path: 0.1 * rng.standard_normal(size, np.float32) for path, size in sizes.items()}
    norms = [path for path in sizes if path.endswith("norm/bias")]
    return drawn | {path.replace("bias", "scale"): np.ones(sizes[path], np.float32) for path in norms}


def prompts(shape: Shape, batch: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, shape.vocab_size, (batch, PROMPT)).astype(np.int32)


def our_stepper(shape: Shape) -> Any:
    import jax
    import jax.numpy as jnp
    from flax import traverse_util

    from transformer.models.decoder import Decoder, DecoderStepper

    config = shape.gpt2(max_length=shape.length, norm_epsilon=1e-5, vocab_multiple=1)
    params = traverse_util.unflatten_dict(weights(shape), sep="/")
    return DecoderStepper.of(Decoder(config, shape.vocab_size), jax.tree.map(jnp.asarray, params))


def ours(case: Case):
    import jax

    from transformer.decoding.generation import generate

    rngs_b = jax.random.split(jax.random.key(0), case.batch)
    lengths_b = np.full(case.batch, PROMPT, np.int32)
    inputs = our_stepper(case.shape), prompts(case.shape, case.batch), lengths_b, rngs_b
    start = time.perf_counter()
    compiled = generate.lower(*inputs, max_new_tokens=case.new, temperature=None).compile()
    report = {
        "compile_s": time.perf_counter() - start,
        "program_gb": compiled.memory_analysis().temp_size_in_bytes / 2**30,
    }
    return lambda: np.asarray(compiled(*inputs, temperature=None)[0]), report


def ours_growing(case: Case):
    import jax

    from transformer.decoding.completion import ContextWindow, TextGenerator
    from transformer.decoding.sampling import DecodingConfig

    config = DecodingConfig(max_new_tokens=case.new, temperature=0.0)
    window = ContextWindow(-1, case.shape.length, rolling=True)
    # No text is decoded, so no tokenizer is needed.
    generator: Any = TextGenerator(our_stepper(case.shape), None, config, window, batch_size=case.batch)
    tokens = prompts(case.shape, case.batch).tolist()

    def call() -> np.ndarray:
        return np.array([text.new for (text,) in generator.complete(tokens, jax.random.key(0))])

    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    start = time.perf_counter()
    call()
    report = {"compile_s": first - (time.perf_counter() - start), "program_gb": float("nan")}
    return call, report


def transformers(case: Case):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape, batch = case.shape, case.batch
    config = GPT2Config(
        n_layer=shape.num_layers,
        n_embd=shape.d_model,
        n_head=shape.num_heads,
        n_positions=shape.length,
        vocab_size=shape.vocab_size,
        activation_function="gelu_new",
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    model.load_state_dict(_gpt2(weights(shape), shape))
    model.to(device := common.torch_device())
    tokens = torch.from_numpy(prompts(shape, batch)).long().to(device)
    options = {"do_sample": False, "use_cache": True, "max_new_tokens": case.new, "pad_token_id": 0}

    def call() -> np.ndarray:
        with torch.inference_mode():
            both = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        return both[:, PROMPT:].cpu().numpy()

    return call, {"compile_s": 0.0, "program_gb": float("nan")}


def torch_gpt(case: Case, compiled: bool = False):
    import torch

    from benchmarks.torch_gpt import TorchDecoder, TorchGenerator

    shape, batch = case.shape, case.batch
    model = TorchDecoder(shape).eval()
    model.load_state_dict(_by_hand(_gpt2(weights(shape), shape)))
    model.to(device := common.torch_device())
    generator = TorchGenerator(model, batch, shape.length, compiled)
    tokens = torch.from_numpy(prompts(shape, batch)).long().to(device)
    start = time.perf_counter()
    generator.generate(tokens, 2)
    report = {"compile_s": time.perf_counter() - start if compiled else 0.0, "program_gb": float("nan")}
    return lambda: generator.generate(tokens, case.new).cpu().numpy(), report


def torch_gpt_compiled(case: Case):
    return torch_gpt(case, compiled=True)


def _by_hand(state: dict) -> dict:
    """The parameters of GPT-2 by the names of `TorchDecoder`, kernels transposed."""
    names = {"wte": "embedding", "wpe": "positions", "ln_f": "norm", "h": "blocks", "ln_1": "attention_norm"}
    names |= {"ln_2": "feed_forward_norm", "c_attn": "query_key_value", "c_fc": "up", "attn": "", "mlp": ""}
    arrays = {}
    for name, x in state.items():
        parts = name.removeprefix("transformer.").split(".")
        if "c_proj" in parts:
            parts[parts.index("c_proj")] = "output" if "attn" in parts else "down"
        if parts[0] != "lm_head":
            path = ".".join(filter(None, (names.get(part, part) for part in parts)))
            arrays[path] = x.T.contiguous() if parts[0] == "h" and x.ndim == 2 else x
    return arrays


def _gpt2(ours: dict[str, np.ndarray], shape: Shape) -> dict:
    """The same parameters by the names of GPT-2, one layer at a time, with q, k, v concatenated."""
    import torch

    d = shape.d_model
    named = {"wte.weight": ours["embedding/table"], "wpe.weight": ours["position/table"]}
    named |= {"ln_f.weight": ours["final_norm/scale"], "ln_f.bias": ours["final_norm/bias"]}
    for i in range(shape.num_layers):
        layer = {path.removeprefix("blocks/"): x[i] for path, x in ours.items() if path.startswith("blocks/")}
        parts = [f"attention/{name}" for name in ("query", "key", "value")]
        named |= {
            f"h.{i}.ln_1.weight": layer["attention_norm/scale"],
            f"h.{i}.ln_1.bias": layer["attention_norm/bias"],
            f"h.{i}.attn.c_attn.weight": np.hstack([layer[f"{p}/kernel"].reshape(d, d) for p in parts]),
            f"h.{i}.attn.c_attn.bias": np.hstack([layer[f"{p}/bias"].reshape(d) for p in parts]),
            f"h.{i}.attn.c_proj.weight": layer["attention/output/kernel"].reshape(d, d),
            f"h.{i}.attn.c_proj.bias": layer["attention/output/bias"],
            f"h.{i}.ln_2.weight": layer["feed_forward_norm/scale"],
            f"h.{i}.ln_2.bias": layer["feed_forward_norm/bias"],
            f"h.{i}.mlp.c_fc.weight": layer["feed_forward/up/kernel"],
            f"h.{i}.mlp.c_fc.bias": layer["feed_forward/up/bias"],
            f"h.{i}.mlp.c_proj.weight": layer["feed_forward/down/kernel"],
            f"h.{i}.mlp.c_proj.bias": layer["feed_forward/down/bias"],
        }
    state = {f"transformer.{name}": torch.from_numpy(np.ascontiguousarray(x)) for name, x in named.items()}
    return state | {"lm_head.weight": state["transformer.wte.weight"]}


def step_floor(shape: Shape, batch: int) -> float:
    """A lower bound of the seconds of a decoding step on this machine (see the module's docstring)."""
    import jax
    import jax.numpy as jnp

    d, matrices = shape.d_model, 12 * shape.num_layers * shape.d_model**2 + shape.vocab_size * shape.d_model
    parts = [jnp.ones((d, 4 * d)) for _ in range(matrices // (4 * d * d))]

    @jax.jit
    def read(parts, x):
        for part in parts:
            x = (x @ part).reshape(4, d).sum(0, keepdims=True) * 1e-3
        return x

    x, seconds = jnp.ones((1, d)), []
    for _ in range(20):
        start = time.perf_counter()
        read(parts, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    reading = min(seconds) * matrices / (len(parts) * 4 * d * d)
    return max(reading, 2 * batch * matrices / common.ceiling("float32"))


CONTESTANTS = {
    "ours": ours,
    "ours_growing": ours_growing,
    "torch_gpt": torch_gpt,
    "torch_gpt_compiled": torch_gpt_compiled,
    "transformers": transformers,
}


def work(name: str, case: str) -> None:
    call, report = CONTESTANTS[name](CASES[case])
    common.serve(call, tokens=call().tolist(), **report)


def row(case: str, name: str, contestant: Contestant, first: Contestant, floor: float) -> dict:
    size, batch, new = CASES[case]
    seconds = statistics.median(contestant.seconds)
    same = np.mean(np.equal(contestant.report["tokens"], first.report["tokens"]))
    return {
        "size": size,
        "batch": batch,
        "new": new,
        "who": name,
        "tokens/s": f"{batch * new / seconds:,.0f}",
        "best": f"{batch * new / min(contestant.seconds):,.0f}",
        "of ceiling": f"{floor * new / seconds:.0%}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "same tokens": f"{same:.0%}",
        "memory GB": f"{contestant.report['memory_gb']:.2f}",
        "of it program GB": common.gigabytes(contestant.report["program_gb"]),
        "compile s": f"{contestant.report['compile_s']:.1f}",
    }


def step_floor_of(case: str) -> float:
    """`step_floor` of a case."""
    return step_floor(CASES[case].shape, CASES[case].batch)


if __name__ == "__main__":
    common.contest(
        "benchmarks.decode_speed", __doc__, list(CASES), CONTESTANTS, work, row, measure=step_floor_of
    )
