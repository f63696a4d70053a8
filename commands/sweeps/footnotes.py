"""Footnotes of tables and comparisons: which runs they leave out or read with care, and why."""

from collections.abc import Sequence

from commands.sweeps.rows import DIVERGED, Row, Trained


def listed(label: str, names: Sequence[str]) -> list[str]:
    """A line that counts runs and names the first, if there are any."""
    more = ", ..." if names[4:] else ""
    return [f"{label}: {len(names)} ({', '.join(names[:4])}{more})"] if names else []


def diverged(runs: Sequence[Trained], metric: str) -> list[str]:
    """A line for runs that have diverged, if there are any."""
    return listed(DIVERGED, [run.path.name for run in runs if run.has_diverged(metric)])


def uncounted(rows: Sequence[Row], metric: str) -> list[str]:
    """Lines for runs whose value is in no mean, or in one of two with the same seed, if there are any."""
    left_out = [run for row in rows for run in row.uncounted]
    absent = [run.path.name for run in left_out if not run.has(metric)]
    earlier = [f"{run.path.name} at {run.step_of(metric)}" for run in left_out if run.has(metric)]
    again = []
    for row in rows:
        seeds = [run.config.get("seed") for run in row.runs]
        again += [run.path.name for i, run in enumerate(row.runs) if seeds[i] in seeds[:i]]
    return [
        *listed(f"left out without {metric}", absent),
        *listed("left out at an earlier step than the others of their row", earlier),
        *listed("with a seed that another run of their row has", again),
    ]


def unfinished(runs: Sequence[Trained]) -> list[str]:
    """A line for runs that have not trained to their end, if there are any."""
    stopped = [run for run in runs if run.last_step < run.steps]
    return listed("not finished", [f"{run.path.name} at {run.last_step}" for run in stopped])


def skipping(runs: Sequence[Trained]) -> list[str]:
    """A line for runs with skipped steps, if there are any: their values are of fewer updates than steps."""
    name = "train/skipped_steps"
    counts = [(run, int(run.last(name))) for run in runs if name in run.measured and run.last(name) > 0]
    return listed("with skipped steps", [f"{run.path.name}: {n} of {run.last_step}" for run, n in counts])
