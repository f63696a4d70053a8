"""What `--mode=scaling` keeps: its runs and their fits in law.json, and how it is read again."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.sizes import Family
from transformer.errors import UserError
from transformer.json_text import parse_json

if TYPE_CHECKING:
    from commands.jobs import Job
    from commands.sizes import Size
    from transformer.evaluation.scaling_law import Study

LAW = "law.json"


def describe(job: "Job", size: "Size", budget: float, seed: int, metric: str) -> dict[str, Any]:
    """A trained run as in law.json.

    Raises:
      UserError: it has not measured the metric, or no positive number.
    """
    from commands.compare import last

    if not 0 < (loss := last(job, metric)) < math.inf:
        raise UserError(f"--metric: {metric} of {job.folder} is {loss}; expected a loss above 0")
    return size.planned(budget, seed) | {"name": job.name, "loss": loss}


def fit(runs: Sequence[dict[str, Any]]) -> "Study":
    """The fits of the runs in law.json."""
    import numpy as np

    from transformer.evaluation.scaling_law import study

    n, d, budget, loss = (np.array([each[key] for each in runs]) for key in ("n", "d", "budget", "loss"))
    return study(n, d, budget, loss)


def summary(found: "Study") -> dict[str, Any]:
    """The fits as in law.json."""
    from transformer.evaluation.scaling_law import interval

    law, exponent = found.law, {}
    for name, best, samples in (
        ("law", found.law, found.laws),
        ("isoflop", found.isoflop, found.isoflops),
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
    return {"law": values, "exponents": exponent, "noise": found.noise}


def family_of(law: dict[str, Any]) -> Family:
    """The family of a law.json."""
    return Family(law["config"], tuple((key, value) for key, value in law["overrides"]), law["width"])


def read(path: Path, first: str) -> dict[str, Any]:
    """What an earlier command has written.

    Raises:
      UserError: nothing; `first` says what comes first.
    """
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"--workdir: there is no {path}; {first}") from None
    except ValueError:
        raise UserError(f"{path}: it is no JSON") from None


def write(path: Path, values: dict[str, Any]) -> None:
    """Writes JSON, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
