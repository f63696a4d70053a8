"""Trains a family of sizes on equal budgets, fits how the loss falls, and forecasts a larger run.

python launch.py --mode=scaling --config=configs/lm.py --workdir=runs/law --budgets=1e12,2e12 --depths=2,3,4,5
python launch.py --mode=scaling --workdir=runs/law --forecast=2e13
python launch.py --mode=scaling --workdir=runs/law --score

The first command trains what is missing, prints the fits and writes law.json and pictures. The second writes
forecast.json, which is not written again once that run has started. The third trains that run and compares.
See transformer/evaluation/statistics/scaling_law.py for the fits, and commands/scaling_laws/sizes.py for what
depth changes.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import NO_CONFIG, NO_WORKDIR, place
from commands.sweeps.rows import DIVERGED
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.evaluation.statistics.scaling_law import Study
    from workdir.opening import Overrides


LEAST_SIZES = 4
"""The sizes of a budget that a fit needs."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(
        missing=f"{NO_CONFIG}; of a law that exists, {NO_WORKDIR}", suffix="scaling", alone=True
    )
    add = parser.add_argument
    add(
        "--config",
        type=place,
        default="",
        help="a config file, configs/lm.py: the member of the family of its depth",
    )
    add("--budgets", default="", help="FLOPs of a run, 1e12,2e12,4e12: each for every depth")
    add("--depths", default="", help="sizes, as numbers of layers, 2,3,4,5; other keys follow")
    add("--width", type=float, default=0.0, help="model.d_model for each layer (as in the config)")
    add("--seeds", type=int, default=1, help="runs of each size and budget (1), with seeds 0, 1, ...")
    add("--metric", default="eval/loss", help="what is fitted, a loss in nats (eval/loss)")
    add("--forecast", type=float, metavar="FLOPS", help="forecast the best size for a larger budget")
    add("--forecast_depth", type=int, help="the depth to forecast (the nearest to the best)")
    add("--score", action="store_true", help="train the run that was forecast, and compare")
    add("--jobs", type=int, default=1, help="runs at a time (1)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Fits, forecasts and scores, as the flags ask for. Returns 0, or 1 if a run failed."""
    from commands.scaling_laws.forecast import predict, score

    check(flags, [*overrides])
    folder = Path(flags.workdir)
    if flags.config and (code := measure(flags, [*overrides])):
        return code
    if flags.forecast is not None:
        predict(folder, flags.forecast, flags.forecast_depth)
    return score(folder, flags.jobs) if flags.score else 0


def check(flags: argparse.Namespace, overrides: Sequence[tuple[str, str]]) -> None:
    """Raises `UserError` for flags that cannot be, before a run is trained."""
    from commands.scaling_laws.forecast import check_larger
    from commands.scaling_laws.laws import read_forecast

    if not flags.config:
        if flags.forecast is None and not flags.score:
            raise UserError(f"{NO_CONFIG}; or --forecast=FLOPS, or --score")
        names = [f"--config.{key}" for key, _ in overrides]
        names += [f"--{name}" for name in ("budgets", "depths", "width") if getattr(flags, name)]
        if names:
            raise UserError(f"{names[0]}: it is for the runs of a fit; give it with --config")
    for name in ("jobs", "seeds"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name}: {getattr(flags, name)}; expected 1 or more")
    if flags.width < 0 or not math.isfinite(flags.width):
        raise UserError(f"--width: {flags.width:g}; expected a width above 0")
    if flags.forecast is not None and not 0 < flags.forecast < math.inf:
        raise UserError(f"--forecast: {flags.forecast:g}; expected FLOPs above 0")
    if flags.config and flags.forecast is not None:
        check_larger(flags.forecast, numbers("budgets", flags.budgets, 2))
    if flags.config and flags.score and flags.forecast is None:
        read_forecast(Path(flags.workdir))
    if flags.forecast_depth is not None and (flags.forecast is None or flags.forecast_depth < 1):
        raise UserError(f"--forecast_depth: {flags.forecast_depth}; expected 1 or more, with --forecast")


def measure(flags: argparse.Namespace, overrides: Sequence[tuple[str, str]]) -> int:
    """Trains what is missing, fits, prints, and writes law.json and pictures."""
    from commands.scaling_laws.laws import LAW, describe, fit, summary
    from commands.scaling_laws.sizes import Family
    from commands.sweeps.footnotes import listed
    from commands.sweeps.measuring import last, train
    from transformer.visualization.scaling_plots import draw_isoflop, draw_optimum
    from workdir.folder import write_json

    budgets, depths = numbers("budgets", flags.budgets, 2), numbers("depths", flags.depths, LEAST_SIZES)
    if any(not depth.is_integer() for depth in depths):
        raise UserError(f"--depths: {flags.depths}; expected whole numbers")
    family = Family(flags.config, tuple(overrides), flags.width)
    sizes = [family.size(int(depth)) for depth in depths]
    grid = [(size, budget, seed) for budget in budgets for size in sizes for seed in range(flags.seeds)]
    jobs = [family.job(flags.workdir, *result) for result in grid]
    if code := train(jobs, flags.jobs, flags.metric):
        return code
    lost = [job.name for job in jobs if math.isnan(last(job, flags.metric))]
    measured = [(job, result) for job, result in zip(jobs, grid, strict=True) if job.name not in lost]
    runs = [describe(job, *result, flags.metric) for job, result in measured]
    left_out = listed("diverged, and left out of the fits", lost)
    check_enough(runs, budgets, left_out)
    study, folder = fit(runs), Path(flags.workdir)
    of_family = {"config": flags.config, "overrides": family.overrides, "width": flags.width}
    values = of_family | {"metric": flags.metric, "runs": runs, "diverged": lost} | summary(study)
    write_json(folder / LAW, values, indent=1)
    whole = flags.seeds if lost else 0
    print(*table(runs, whole), *left_out, *study_lines(study), *between_seeds(runs), sep="\n")
    draw_isoflop(runs, study, folder / "isoflop.png")
    draw_optimum(study, folder / "optimum.png")
    return 0


def check_enough(runs: Sequence[dict[str, Any]], budgets: Sequence[float], left_out: Sequence[str]) -> None:
    """Raises `UserError` if a budget has fewer than `LEAST_SIZES` sizes with a run that has not diverged."""
    for budget in budgets:
        depths = sorted({run["depth"] for run in runs if run["budget"] == budget})
        if len(depths) < LEAST_SIZES:
            these = ", ".join(map(str, depths)) or "none"
            raise UserError(
                f"--depths: at {budget:g} FLOPs those with a finite loss are {these}; expected {LEAST_SIZES} "
                f"or more ({'; '.join(left_out)})"
            )


def numbers(name: str, text: str, least: int) -> list[float]:
    """The numbers of a flag, ascending.

    Raises:
      UserError: they are not positive numbers, or too few.
    """
    try:
        values = sorted({float(item) for item in text.split(",")})
    except ValueError:
        values = []
    if len(values) < least or not all(0 < item < math.inf for item in values):
        example = {"budgets": "1e12,2e12,4e12", "depths": "2,3,4,5"}[name]
        raise UserError(f"--{name}: {text!r}; expected {least} or more positive numbers, as in {example}")
    return values


def table(runs: Sequence[dict[str, Any]], whole: int = 0) -> Iterator[str]:
    """The mean loss of each size and budget; * marks the least of a budget. One with fewer runs than `whole`
    has no mean, since the others have diverged."""
    budgets = sorted({run["budget"] for run in runs})
    losses: dict[tuple[float, int], list[float]] = {}
    for run in runs:
        losses.setdefault((run["budget"], run["depth"]), []).append(run["loss"])
    means = {key: sum(values) / len(values) for key, values in losses.items() if len(values) >= whole}
    least = {
        budget: min((value for (of, _), value in means.items() if of == budget), default=math.nan)
        for budget in budgets
    }
    yield "depth  d_model   parameters            N" + "".join(f"{budget:>10.3g}" for budget in budgets)
    for depth, run in sorted({run["depth"]: run for run in runs}.items()):
        cells = (means.get((budget, depth), math.nan) for budget in budgets)
        marked = (
            f"{DIVERGED} " if math.isnan(mean) else f"{mean:.4f}{'*' if mean == least[of] else ' '}"
            for mean, of in zip(cells, budgets, strict=True)
        )
        row = f"{depth:5d}  {run['d_model']:7d}  {run['parameters']:11,d}  {run['n']:11,.0f}"
        yield row + "".join(cell.rjust(10) for cell in marked)


def study_lines(study: "Study") -> Iterator[str]:
    """The fits in words, and whether sizes are missing."""
    from commands.scaling_laws.laws import summary

    fits = summary(study)
    yield "N = training FLOPs of a token / 6 (kernels, output matrix, attention), D = tokens, C = 6 N D"
    yield "L(N, D) = E + A / N^a + B / D^b: " + ", ".join(f"{k} {v:.4g}" for k, v in fits["law"].items())
    for name, by in (("law", "L(N, D)"), ("isoflop", "parabolas")):
        if name not in fits["exponents"]:
            yield f"by {by}: no power law, since a budget has no minimum"
            continue
        shown = (
            f"{letter.upper()}* ~ C^{x:.3f} (90 % interval {low:.3f} to {high:.3f})"
            for letter, (x, low, high) in fits["exponents"][name].items()
        )
        yield f"by {by}: {', '.join(shown)}"
    yield f"runs differ from L(N, D) by {study.noise:.2%} (standard deviation)"
    for budget in study.isoflop.budget_c[~study.isoflop.between_c]:
        yield f"at {budget:.3g} FLOPs the parabola has no minimum among these depths"


def between_seeds(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The spread of runs that differ in their seed alone, if there are any. A larger distance from the law is
    an error of the law."""
    groups: dict[tuple[float, int], list[float]] = {}
    for value in runs:
        groups.setdefault((value["budget"], value["depth"]), []).append(math.log(value["loss"]))
    free = len(runs) - len(groups)
    if free:
        means = (sum(group) / len(group) for group in groups.values())
        squares = (
            sum((value - mean) ** 2 for value in group)
            for group, mean in zip(groups.values(), means, strict=True)
        )
        yield f"seeds differ by {math.sqrt(sum(squares) / free):.2%} (standard deviation)"
