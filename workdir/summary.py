"""The summary at the end of training: the last evaluation beside a baseline, and commands to run next."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from transformer.run_folder import RunFolder
from transformer.training.logging.writers import names_of
from transformer.training.optim.optimizer import make_schedule
from transformer.training.run import Run
from transformer.visualization.report import last_values, write_report
from workdir.facts import write
from workdir.provenance import command


def summary(run: Run, folder: RunFolder) -> Iterator[str]:
    """Writes the report, and yields the lines of the summary. A part that fails is replaced by a line that
    says why; the run is finished in any case."""
    config: Any = run.config
    experiment: Any = run.experiment
    logged = "jsonl" in names_of(config.train.writers)
    results = [*_or_why_not("what was measured", lambda: measured(run, folder, logged))]
    if logged:
        yield from _or_why_not("the report", lambda: _report(run, folder, results))
    yield from results
    yield from _or_why_not("a sample", lambda: _sample(folder, config.train.steps))
    entries = {path.name for path in folder.path.iterdir()}
    yield f"{folder.path} has {', '.join(sorted(entries - {folder.lock.name}))}"
    yield "Next, for example:"
    yield f"  {command(folder, '--mode=evaluate')}"
    mode = f"--mode={experiment.example_mode}"
    yield from _or_why_not(
        f"how to use it: {mode}", lambda: [f"  {command(folder, mode, *experiment.example_flags())}"]
    )
    steps = 2 * config.train.steps
    longer, note = command(folder, f"--config.train.steps={steps}"), rewarming(run, steps)
    yield f"  {longer}" + (f"  # {note}" if note else "")


def rewarming(run: Run, steps: int) -> str:
    """A note if extending the run to `steps` raises the learning rate after the present last step, else
    ""."""
    now = run.config.train.steps
    longer = make_schedule(run.config.optimizer, steps, [*run.lengths, (now, now)])
    last, top = float(run.schedule(now - 1)), float(np.max(longer(np.arange(now, steps))))
    return f"the learning rate rises again, from {last:.3g} to {top:.3g}" if top > last else ""


def _report(run: Run, folder: RunFolder, results: list[str]) -> list[str]:
    write_report(folder)
    write(run, folder, results, folder.page)
    return []


def measured(run: Run, folder: RunFolder, logged: bool) -> Iterator[str]:
    """The lines on the last evaluation; with `logged` the folder has metrics."""
    metrics = (last_values(folder.metrics) if logged else {}) | run.latest.values
    if skipped := int(metrics.get("train/skipped_steps", 0)):
        steps = f"{skipped} of {run.config.train.steps} steps were skipped"
        yield f"{steps}: their gradients were not finite, or training was rolled back"
    lost = [name for name, value in metrics.items() if name.startswith("eval/") and math.isnan(value)]
    if lost:
        yield f"the last evaluation gave no number for {', '.join(lost)}: training may have diverged"
    experiment: Any = run.experiment
    if metrics:
        yield from experiment.result_lines(metrics)


def _sample(folder: RunFolder, steps: int) -> Iterator[str]:
    of_this_run = [path for path in folder.samples.glob("*.txt") if path.stem <= f"{steps:08d}"]
    if of_this_run:
        sample = max(of_this_run)
        yield f"\n{sample}:\n{sample.read_text(encoding='utf-8')}"


def _or_why_not(subject: str, lines: Callable[[], Iterable[str]]) -> Iterator[str]:
    try:
        yield from list(lines())
    except Exception as error:
        why = f"{error} was not measured" if isinstance(error, KeyError) else " ".join(str(error).split())
        yield f"{subject} cannot be told: {why or type(error).__name__}"
