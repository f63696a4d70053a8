"""Decoding with weights and caches of fewer bits: processor time, bytes, and how far predictions move.

    python -m benchmarks.few_bits [--size M] [--new 48] [--kinds float32 int8 bfloat16]
    python -m benchmarks.few_bits --workdir runs/lm

The first form times greedy decoding of one row at the size of GPT-2 small (M) or smaller (S), with random
weights. The second reads validation text with a trained run: the divergence KL(float32, other) of the next
token, its mean in nats, and the share of equal greedy tokens. A kind is WEIGHTS or WEIGHTS+CACHE. Processor
time is summed over cores, the best of 4; "weights" is what the stepper holds, "program" what its loop
needs besides, "cache" the keys and values.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from benchmarks import common, decode_speed
from transformer.decoding.generation import advance, begin
from transformer.models.decoder import Decoder, DecoderStepper
from transformer.models.transforms.reduced import reduced
from workdir.opening import load

KINDS = ("float32", "bfloat16", "int8", "int8+int8", "float8")


def stepper_of(model: Decoder, params: dict, kind: str) -> DecoderStepper:
    weights, _, cache = kind.partition("+")
    return DecoderStepper.of(model, reduced(params, weights), cache or "auto")


def megabytes(tree: object) -> float:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e6


def time_of(size: str, kind: str, new: int) -> dict[str, object]:
    """A row of the table of times."""
    shape = decode_speed.Case(size, 1).shape
    config = shape.gpt2(max_length=shape.length, vocab_multiple=1)
    params = traverse_util.unflatten_dict(decode_speed.weights(shape), sep="/")
    stepper = stepper_of(Decoder(config, shape.vocab_size), jax.tree.map(jnp.asarray, params), kind)
    rngs, lengths = jax.random.split(jax.random.key(0), 1), np.full(1, decode_speed.PROMPT, np.int32)
    options = {"eos_id": -1, "temperature": None}

    def begun():
        arguments = stepper, decode_speed.prompts(shape, 1), lengths, rngs
        state = begin(*arguments, room=new, limits_b=np.full(1, new), positions_b=lengths, **options)
        return jax.block_until_ready(state)

    program = advance.lower(stepper, begun(), rngs, n=new - 1, **options).compile()
    seconds = []
    for _ in range(4):
        state = begun()
        start = time.process_time()
        jax.block_until_ready(program(stepper, state, rngs, **options))
        seconds.append((time.process_time() - start) / (new - 1))
    return {
        "size": size,
        "weights, cache": kind,
        "processor ms a token": f"{1e3 * min(seconds):.2f}",
        "weights MB": f"{megabytes(stepper):.0f}",
        "program MB": f"{program.memory_analysis().temp_size_in_bytes / 1e6:.1f}",
        "cache MB": f"{megabytes(begun().cache.layers):.2f}",
    }


def divergence_of(workdir: str, kinds: list[str]) -> list[dict[str, object]]:
    """The rows of the table of divergences, over the first batch of validation text."""
    run, params = load(workdir)
    model, tokens = run.experiment.model, next(iter(run.experiment.loader("validation").iterate(0)))["tokens"]

    @jax.jit
    def log_p(stepper):
        def step(cache, token_b):
            logits_bv, cache = stepper.step(token_b, cache)
            return cache, jax.nn.log_softmax(logits_bv)

        _, cache = stepper.prefill(tokens[:, :1], np.ones(len(tokens), np.int32), tokens.shape[1])
        return jax.lax.scan(step, cache, tokens[:, 1:].T)[1]

    p = log_p(stepper_of(model, params, "float32"))
    rows = []
    for kind in kinds:
        q = log_p(stepper_of(model, params, kind))
        rows.append({
            "weights, cache": kind,
            "KL": f"{float(jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=-1))):.6f}",
            "same greedy tokens": f"{float(jnp.mean(p.argmax(-1) == q.argmax(-1))):.1%}",
            "weights MB": f"{megabytes(stepper_of(model, params, kind)):.1f}",
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir")
    parser.add_argument("--size", choices=list(common.SHAPES), default="M")
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    flags = parser.parse_args()
    print(common.machine())
    if flags.workdir:
        print(common.table(divergence_of(flags.workdir, flags.kinds)))
    else:
        print(common.table([time_of(flags.size, kind, flags.new) for kind in flags.kinds]))
