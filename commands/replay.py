"""Makes a step of training again, and names the layer that computes the first value that is not finite.

python launch.py --workdir=runs/lm --mode=replay --step=100

Continues from the last checkpoint before that step, with the very batches and random numbers of the run,
which is not changed. The exit code is 1 if something is not finite. `--mode=batch` prints what the step
reads.
"""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from transformer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformer.evaluation.nonfinite import Finding
    from transformer.run_folder import RunFolder
    from transformer.training.metrics import Sum
    from transformer.training.run import Run
    from transformer.training.state import State
    from workdir.opening import Overrides

LOSSES_BEFORE = 10
"""Steps before the one that is examined whose losses are printed."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.add_argument("--step", type=int, help="the step, as in metrics.jsonl: 1 is the first")
    parser.add_argument("--accept_data", action="store_true", help="read data that have changed since")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints what is found; returns the exit code."""
    import jax

    from workdir.opening import named, reopen_run, resumed

    if flags.step is None or flags.step < 1:
        step = "which one?" if flags.step is None else flags.step
        raise UserError(f"--step: {step}; expected 1 or more (--mode=replay)")
    folder = named(flags.workdir)
    run = resumed(reopen_run(flags.workdir, overrides), folder, flags.accept_data)
    if run.experiment.around:
        raise UserError(
            f"--mode=replay: batches of {run.config.experiment} are drawn as it trains: resume it"
        )  # type: ignore[attr-defined]
    if flags.step > run.config.train.steps:
        raise UserError(f"--step: {flags.step}, but the run has {run.config.train.steps} steps")
    with run.placed():
        lines, wrong = replay(run, folder, flags.step)
    if jax.process_index() == 0:
        print(*lines, sep="\n")
    return int(wrong)


def replay(run: "Run", folder: "RunFolder", last: int) -> tuple[list[str], bool]:
    """Makes the steps up to `last` again, from a checkpoint; returns what to print of the last one, and
    whether something in it is not finite."""
    import jax
    from tqdm import tqdm

    from transformer.evaluation.nonfinite import Finding, first_nonfinite, nonfinite_params
    from transformer.training.step import CompiledStep

    state = before(run, folder, last)
    first, c, staged = int(state.step), run.config, bool(run.config.train.until)
    step: Any = run.stages.step(first) if staged else CompiledStep(run.jitted())
    batches = run.loader.iterate(first)
    for number in tqdm(range(first + 1, last), desc="steps before", leave=False, disable=None):
        state, metrics = step(state, run.put(next(batches)))
        if number >= last - LOSSES_BEFORE and jax.process_index() == 0:
            tqdm.write(f"step {number}: {_values(metrics)}")
    batch = run.put(next(batches))
    here = run.stages.at(last - 1).run if staged else run
    earlier = [f"parameter before it: not finite: {path}" for path in nonfinite_params(state.params)]
    rng = jax.random.fold_in(jax.random.key(c.seed), state.step)
    parts = 1 if here.experiment.whole_batch else c.parallel.microbatches
    finding = first_nonfinite(here.experiment, state.params, batch, state.carry, rng, parts)
    state, metrics = step(state, batch)
    later = [f"parameter after it: not finite: {path}" for path in nonfinite_params(state.params)]
    wrong = bool(earlier or later) or not all(map(_is_finite, metrics.values()))
    lines = [f"step {last}: {_values(metrics)}", *earlier, _described(finding, wrong), *later]
    return lines, wrong or finding != Finding()


def _described(finding: "Finding", wrong: bool) -> str:
    if finding.forward:
        return f"forward: not finite first in the output of {finding.forward}"
    if finding.loss:
        return "forward: the outputs of all modules are finite, but the loss is not finite"
    if finding.backward:
        after = f"; that of {finding.after}, computed before it, is finite" if finding.after else ""
        return f"backward: not finite first is the gradient of the output of {finding.backward}{after}"
    rest = ", but a parameter or its gradient is not" if wrong else ""
    return f"the outputs of all modules are finite, and so are their gradients{rest}"


def before(run: "Run", folder: "RunFolder", last: int) -> "State":
    """The latest state before step `last` that there is a checkpoint of, or the initial one.

    A rollback has made a checkpoint with an earlier step's parameters, which serves for that step; what led
    to the steps after a rollback is not what the steps before it lead to.
    """
    from workdir.recovery.rollback import read_rollbacks

    undone = read_rollbacks(folder)
    checkpoints = run.checkpoints(write=False)
    steps = checkpoints.steps()
    step_of = {rollback["to"]: rollback["step"] for rollback in undone if rollback["step"] in steps}
    step_of |= {step: step for step in steps}
    usable = [
        at for at in step_of if at < last and not any(at < rollback["step"] < last for rollback in undone)
    ]
    if usable:
        at = max(usable)
        state = checkpoints.restore(run.abstract, step_of[at])
        passed = step_of[at] - at
        return dataclasses.replace(state, step=state.step - passed, skipped=state.skipped - passed)
    if folder.fork.exists() or run.config.initialize_from or undone:
        listed = ", ".join(map(str, steps))
        raise UserError(f"--step: {last}; there is no checkpoint from before it (there are {listed})")
    return run.first_state()


def _values(metrics: "Mapping[str, Sum]") -> str:
    values = {name: float(value.mean) for name, value in metrics.items()}
    shown = {name: values[name] for name in ("loss", "gradient_norm") if name in values}
    skipped = ", skipped" if values.get("skipped_steps") else ""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown.items()) + skipped


def _is_finite(value: "Sum") -> bool:
    import numpy as np

    return bool(np.isfinite(value.mean))
