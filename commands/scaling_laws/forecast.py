"""Forecasts of `--mode=scaling`: written before the run is trained, and compared with it after."""

import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commands.scaling_laws.laws import FORECAST, describe, family_of, fit, read_forecast, read_law
from transformer.errors import UserError
from workdir.outputs import check_folder

if TYPE_CHECKING:
    from commands.scaling_laws.sizes import Family, Size
    from commands.sweeps.jobs import Job

FURTHEST = 4
"""A forecast chooses among depths up to this many times the largest of the family."""


def predict(folder: Path, budget: float, depth: int | None) -> None:
    """Writes and prints the loss that a run for a larger budget should have.

    Raises:
      UserError: no law.json, or one of another form; a budget that is not larger; a run that has started.
    """
    from transformer.data.cache.disk_cache import digest
    from workdir.folder import write_json

    law = read_law(folder)
    check_folder("--workdir", str(folder))
    runs = law["runs"]
    check_larger(budget, [run["budget"] for run in runs])
    study, family = fit(runs), family_of(law)
    best = float(study.law.best_n(budget)[0])
    size = family.size(depth) if depth else nearest(family, best, max(run["depth"] for run in runs))
    job = family.job(str(folder), size, budget, seed=0, flag="--forecast")
    check_unseen(folder, job)
    loss, low, high = study.forecast(size.n, size.tokens(budget))
    values = size.planned(budget, 0) | {
        "written": now(),
        "name": job.name,
        "loss": loss,
        "interval": [low, high],
        "best_n": best,
        "config": digest(job.values),
        "runs": len(runs),
    }
    write_json(folder / FORECAST, values, indent=1)
    print(
        f"forecast of {job.name}: {law['metric']} {loss:.4f} (90 % interval {low:.4f} to {high:.4f}), "
        f"N {size.n:,.0f} (N* {best:,.0f}), {size.steps(budget):,} steps; in {folder / FORECAST}"
    )


def check_larger(budget: float, budgets: Sequence[float]) -> None:
    """Raises `UserError` if the budget of a forecast is not larger than those of the fit."""
    if budget <= (most := max(budgets)):
        raise UserError(f"--forecast: {budget:g}; expected more than the largest budget, {most:g}")


def check_unseen(folder: Path, job: "Job") -> None:
    """Raises `UserError` if the run to forecast, or that of an earlier forecast, has started."""
    there = (folder / FORECAST).exists()
    names = [job.name, *([read_forecast(folder)["name"]] if there else [])]
    for name in names:
        if (folder / name / "config.json").exists():
            raise UserError(f"--forecast: {folder / name} has started; a forecast comes before its run")


def nearest(family: "Family", n: float, deepest: int) -> "Size":
    """The size whose N is the nearest to n, by its logarithm."""
    sizes = [family.size(1)]
    while sizes[-1].n < n and sizes[-1].depth < FURTHEST * deepest:
        sizes.append(family.size(sizes[-1].depth + 1))
    return min(sizes, key=lambda size: abs(math.log(size.n / n)))


def now() -> str:
    """The time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def score(folder: Path, at_once: int) -> int:
    """Trains the run that was forecast, and prints and writes the error. Returns 0, or 1 if it failed.

    Raises:
      UserError: no forecast, or one of another form; or a config that has changed since.
    """
    from commands.sweeps.jobs import work
    from transformer.data.cache.disk_cache import digest
    from transformer.visualization.scaling_plots import draw_forecast
    from workdir.folder import write_json

    law = read_law(folder)
    forecast = read_forecast(folder)
    family = family_of(law)
    size = family.size(forecast["depth"])
    job = family.job(str(folder), size, forecast["budget"], forecast["seed"])
    if digest(job.values) != forecast["config"]:
        raise UserError(f"{folder / FORECAST}: {law['config']} has changed since; forecast again")
    if code := work([job], at_once):
        return code
    actual = describe(job, size, forecast["budget"], forecast["seed"], law["metric"])["loss"]
    error, (low, high) = forecast["loss"] / actual - 1, forecast["interval"]
    values = {"forecast": forecast, "actual": actual, "error": error, "scored": now()}
    write_json(folder / "score.json", values, indent=1)
    print(
        f"{job.name}: forecast {forecast['loss']:.4f} on {forecast['written']}, actual {actual:.4f}: "
        f"error {error:+.2%}, {'in' if low <= actual <= high else 'outside'} the 90 % interval"
    )
    draw_forecast(law["runs"], fit(law["runs"]), forecast, actual, folder / "forecast.png")
    return 0
