"""The file law.json of `--mode=scaling`: its runs and their fits."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.scaling_laws.sizes import Family
from transformer.errors import UserError
from transformer.json_text import parse_json

if TYPE_CHECKING:
    from commands.scaling_laws.sizes import Size
    from commands.sweeps.jobs import Job
    from transformer.evaluation.statistics.scaling_law import Study

LAW, FORECAST = "law.json", "forecast.json"

NUMBER = (int, float)

OF_LAW = {"config": str, "overrides": list, "width": NUMBER, "metric": str, "runs": list}
OF_RUN = {"depth": int, "n": NUMBER, "d": NUMBER, "budget": NUMBER, "loss": NUMBER}
OF_FORECAST = {
    **{"name": str, "written": str, "config": str, "depth": int, "seed": int},
    **{"budget": NUMBER, "loss": NUMBER, "interval": list},
}
"""Keys of the files that are read again, and their types."""

ABOVE_0 = ("depth", "n", "d", "budget", "loss")
"""Keys of numbers above 0."""


def describe(job: "Job", size: "Size", budget: float, seed: int, metric: str) -> dict[str, Any]:
    """A trained run as in law.json.

    Raises:
      UserError: it has not measured the metric, or no positive number.
    """
    from commands.sweeps.measuring import last

    if not 0 < (loss := last(job, metric)) < math.inf:
        raise UserError(f"--metric: {metric} of {job.folder} is {loss}; expected a loss above 0")
    return size.planned(budget, seed) | {"name": job.name, "loss": loss}


def fit(runs: Sequence[dict[str, Any]]) -> "Study":
    """The fits of the runs in law.json."""
    import numpy as np

    from transformer.evaluation.statistics.scaling_law import study

    n, d, budget, loss = (np.array([run[key] for run in runs]) for key in ("n", "d", "budget", "loss"))
    return study(n, d, budget, loss)


def summary(study: "Study") -> dict[str, Any]:
    """The fits as in law.json."""
    from transformer.evaluation.statistics.scaling_law import interval

    law, exponent = study.law, {}
    for name, best, samples in (
        ("law", study.law, study.laws),
        ("isoflop", study.isoflop, study.isoflops),
    ):
        low, high = interval(samples.exponent)
        x = float(best.exponent[0])
        if math.isnan(x):
            continue  # a parabola without a minimum
        exponent[name] = {"n": [x, low, high], "d": [1 - x, 1 - high, 1 - low]}
    values = {
        "E": math.exp(law.log_e[0]),
        "A": math.exp(law.log_a[0]),
        "a": float(law.a[0]),
        "B": math.exp(law.log_b[0]),
        "b": float(law.b[0]),
    }
    return {"law": values, "exponents": exponent, "noise": study.noise}


def family_of(law: dict[str, Any]) -> Family:
    """The family of a law.json."""
    return Family(law["config"], tuple((key, value) for key, value in law["overrides"]), law["width"])


def read_law(folder: Path) -> dict[str, Any]:
    """law.json, which an earlier command has written.

    Raises:
      UserError: there is none, or it has another form.
    """
    path = folder / LAW
    law = _read(path, OF_LAW, "first fit, with --config, --budgets and --depths")
    if any(not isinstance(entry, list) or [*map(type, entry)] != [str, str] for entry in law["overrides"]):
        raise UserError(f"{path}: overrides: expected pairs of a key and its value, as text")
    for place, entry in enumerate(law["runs"]):
        _check(path, f"runs[{place}].", entry, OF_RUN)
    runs_of = Counter(entry["budget"] for entry in law["runs"])
    if len(runs_of) < 2 or min(runs_of.values()) < 4:
        raise UserError(f"{path}: runs: expected those of 2 or more budgets, 4 or more of each")
    return law


def read_forecast(folder: Path) -> dict[str, Any]:
    """forecast.json, which an earlier command has written.

    Raises:
      UserError: there is none, or it has another form.
    """
    path = folder / FORECAST
    forecast = _read(path, OF_FORECAST, "first --forecast=FLOPS")
    if [isinstance(end, NUMBER) for end in forecast["interval"]] != [True, True]:
        raise UserError(f"{path}: interval: {forecast['interval']}; expected two losses")
    return forecast


def _read(path: Path, kinds: dict[str, Any], first: str) -> dict[str, Any]:
    """The object in a file, with keys of these types; `first` says what comes before it."""
    try:
        values = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"--workdir: there is no {path}; {first}") from None
    except ValueError:
        raise UserError(f"{path}: it is not JSON") from None
    _check(path, "", values, kinds)
    return values


def _check(path: Path, where: str, values: Any, kinds: dict[str, Any]) -> None:
    """Raises `UserError` unless these are the values of an object, with keys of these types."""
    for key, kind in kinds.items():
        value = values.get(key) if isinstance(values, dict) else None
        if not isinstance(value, kind) or (key in ABOVE_0 and not 0 < value < math.inf):
            fault = "is missing" if value is None else f"is {value!r}"
            raise UserError(f"{path}: {where}{key} {fault}; expected what --mode=scaling writes there")
