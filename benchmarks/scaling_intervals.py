"""Coverage of the intervals of `--mode=scaling`, in studies drawn from known laws.

    python -m benchmarks.scaling_intervals

Each study has five sizes at each of four budgets, as in docs/forecasts.md, and losses with normal noise.
Prints the share of studies whose 90 % interval has the exponent of N*, N* and the loss of a new run for five
times the largest budget, and the exponent by parabolas; and the standard deviation of the forecast's error.
"""

import argparse
import math

import numpy as np

from transformer.evaluation.statistics.scaling_law import Law, interval, study

LAWS = ((0.35, 0.35, 0.002), (0.35, 0.35, 0.006), (0.5, 0.3, 0.004), (0.3, 0.5, 0.004))
"""Exponents a and b, and the noise of log L."""

BUDGETS = (7.5e10, 1.5e11, 3e11, 6e11)
SIZES = (20e3, 48e3, 94e3, 162e3, 258e3)


def one_study(rng: np.random.Generator, law: Law, noise: float) -> list[float]:
    """Whether each of the four intervals has the truth, and the error of the forecast."""
    budget_k = np.repeat(BUDGETS, len(SIZES))
    n_k = np.tile(SIZES, len(BUDGETS))
    d_k, c = budget_k / 6 / n_k, 5 * BUDGETS[-1]
    loss_k = np.array([law.loss(n, d)[0] for n, d in zip(n_k, d_k, strict=True)])
    fitted = study(n_k, d_k, budget_k, loss_k * np.exp(noise * rng.normal(size=len(n_k))))
    x, best = law.exponent[0], law.best_n(c)[0]
    new = law.loss(best, c / 6 / best)[0] * math.exp(noise * rng.normal())
    forecast, *ends = fitted.forecast(best, c / 6 / best)
    checks = (
        (x, interval(fitted.laws.exponent)),
        (best, interval(fitted.laws.best_n(c))),
        (new, ends),
        (x, interval(fitted.isoflops.exponent)),
    )
    return [*(float(low <= truth <= high) for truth, (low, high) in checks), forecast / new - 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=300, help="drawn for each law (300)")
    flags = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| a | b | noise | exponent | N* | forecast | exponent by parabolas | error |")
    print("| --- " * 8 + "|")
    for a, b, noise in LAWS:
        values = math.log(1.2), math.log(1e5) * a, math.log(2e6) * b, a, b
        law = Law(*(np.array([value]) for value in values))
        rows = np.array([one_study(rng, law, noise) for _ in range(flags.studies)])
        shares = " | ".join(f"{share:.1%}" for share in rows[:, :4].mean(axis=0))
        print(f"| {a} | {b} | {noise:.1%} | {shares} | {rows[:, 4].std():.2%} |", flush=True)


if __name__ == "__main__":
    main()
