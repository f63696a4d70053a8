"""The speed of speculative decoding with two trained runs, target and draft, in tokens/s.

    python -m benchmarks.speculative TARGET DRAFT [--prompt "def "] [--new 128] [--draft_tokens 2 4 6]

Batch 1, greedy and at temperature 0.8. After one call each to compile, decoding without and with the draft
model alternate in one process. The table has the best rates and the median of the ratios. Greedy outputs are
compared token by token. "kept" is the mean share of the `draft_tokens` proposals that a round accepts.
"""

import argparse
import time

import jax
import numpy as np

from transformer.decoding.generation import generate
from transformer.decoding.speculative import generate_speculative
from workdir.opening import load


def measure(target: str, draft: str, prompt: str, new: int, draft_tokens: list[int], repeats: int) -> None:
    """Prints the table."""
    run, params = load(target)
    draft_run, draft_params = load(draft)
    tokenizer = run.experiment.data.tokenizer
    assert tokenizer.identity == draft_run.experiment.data.tokenizer.identity, "two tokenizers"
    big, small = run.experiment.stepper(params), draft_run.experiment.stepper(draft_params)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, draft_params)]
    print(f"target {sizes[0]:,} parameters, draft {sizes[1]:,}; {new} tokens after {prompt!r}")
    tokens = np.array([[tokenizer.bos_id, *tokenizer.encode(prompt)]], np.int32)
    inputs = tokens, np.array([tokens.shape[1]], np.int32)
    print("| temperature | draft tokens | tokens/s alone | with draft | faster | passes | kept | same |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for temperature in (None, 0.8):
        options = {"max_new_tokens": new, "temperature": temperature}  # no end-of-sequence token
        for n in draft_tokens:
            alone, drafted, passes, same = [], [], [], []
            for seed in range(-1, repeats):
                rngs = jax.random.split(jax.random.key(max(seed, 0)), 1)
                start = time.perf_counter()
                expected = np.asarray(generate(big, *inputs, rngs, **options)[0])
                middle = time.perf_counter()
                results = generate_speculative(big, small, *inputs, rngs, draft_tokens=n, **options)
                same.append(bool((np.asarray(results[0]) == expected).all()))
                end = time.perf_counter()
                if seed >= 0:  # the first turn compiles
                    alone.append(new / (middle - start))
                    drafted.append(new / (end - middle))
                    passes.append(int(results[2]))
            mean = np.mean(passes)
            kept = ((new - 1) / mean - 1) / n
            ratio = np.median(np.array(drafted) / np.array(alone))
            verdict = ("yes" if all(same) else "no") if not temperature else "-"
            print(
                f"| {temperature or 0} | {n} | {max(alone):.1f} | {max(drafted):.1f} | {ratio:.2f}x "
                f"| {mean:.0f} | {kept:.0%} | {verdict} |",
                flush=True,
            )


def main() -> None:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="the run folder of the target model")
    parser.add_argument("draft", help="the run folder of the draft model")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--draft_tokens", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--repeats", type=int, default=5)
    measure(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
