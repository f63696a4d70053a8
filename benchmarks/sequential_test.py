"""Error rate of the test of `--mode=compare`, and the pairs that it needs, on drawn differences.

    python -m benchmarks.sequential_test

Prints for each mean difference, in standard deviations of the differences, the share of comparisons of up to
40 pairs in which a difference is called, and the pairs until then: the median, and what 95 % need at most.
"""

import argparse

import numpy as np

from transformer.evaluation.statistics.sequential import verdict

EFFECTS = (0.0, 1.0, 1.5, 2.0, 3.0, 4.0)
PAIRS = 40


def pairs_until(differences: np.ndarray, error: float) -> float:
    """The number of pairs after which a difference is called; infinite if none is."""
    counts = (n for n in range(2, len(differences) + 1) if verdict(list(differences[:n]), error))
    return next(counts, np.inf)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=4000, help="drawn for each difference (4000)")
    parser.add_argument("--error", type=float, default=0.05, help="the error rate that is promised (0.05)")
    flags = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| difference | called | median pairs | 95 % within |\n| --- | --- | --- | --- |")
    for effect in EFFECTS:
        drawn = rng.normal(effect, 1.0, (flags.comparisons, PAIRS))
        pairs = np.array([pairs_until(differences, flags.error) for differences in drawn])
        median, most = (f"{np.sort(pairs)[int(share * len(pairs))]:.0f}" for share in (0.5, 0.95))
        called = np.isfinite(pairs).mean()
        print(f"| {effect:g} | {called:.1%} | {median} | {most} |".replace("inf", "-"), flush=True)


if __name__ == "__main__":
    main()
