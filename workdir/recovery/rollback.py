"""Rollbacks: a run whose training has diverged continues from an earlier checkpoint."""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.extras.divergence import REMEDY, Diverged
from transformer.training.logging.writers import make_writers, names_of
from transformer.training.run import Run
from workdir.folder import read_json, steps_of, write_json
from workdir.lock import exclusive
from workdir.opening import reopen_run, resumed

Rollback = dict[str, Any]
"""The steps `since` ... `step` went wrong, for `why`; step `step` has the parameters of step `to`."""


def roll_back(workdir: str, error: Diverged) -> None:
    """Makes a checkpoint of the last step with the parameters of the last good one, so that training
    continues with the data after it: the steps between count as skipped. `rollbacks.json` keeps what was
    done, and `diverged/` the batch of the first step that went wrong.

    Good are checkpoints from before that step; one that was gone back to before is taken only if there is no
    other. Source: Chowdhery et al. 2022 (PaLM), section 5.1.

    Raises:
      UserError: there is no good checkpoint, or it was done `train.rollbacks` times.
    """
    folder = RunFolder(workdir)
    done = read_rollbacks(folder)
    retry = f"--mode=replay --step={error.since} makes that step again, and names the layer that goes wrong"
    if not steps_of(folder):
        raise UserError(f"{error}; there is no checkpoint before it to go back to; {REMEDY}")
    run = resumed(reopen_run(workdir), folder, accept_data=True)
    with exclusive(folder.lock):
        batch = _keep_batch(folder, run, error.since)
        most = run.config.train.rollbacks
        if len(done) >= most:
            raise UserError(
                f"{error}; it went back {len(done)} times before (train.rollbacks {most}). "
                f"The batch of step {error.since} is in {batch}; {retry}"
            )
        to = _go_back(run, error, done)
        done.append({"since": error.since, "step": error.step, "to": to, "why": str(error)})
        if jax.process_index() == 0:
            write_json(folder.rollbacks, done, indent=1)
            for writer in make_writers(folder, error.step, names_of(run.config.train.writers)):
                writer.write(error.step, {**error.values, "train/rolled_back_to": to})
                writer.close()
            print(
                f"warning: {error}; continuing from step {error.step} with the parameters of step {to} "
                f"(rollback {len(done)} of {most})",
                file=sys.stderr,
            )


def _go_back(run: Run, error: Diverged, done: list[Rollback]) -> int:
    """Saves the new checkpoint; returns the step of its parameters."""
    with run.placed(), run.checkpoints(write=True) as checkpoints:
        good = [step for step in checkpoints.steps() if step < error.since]
        if not good:
            raise UserError(f"{error}; there is no checkpoint before it to go back to; {REMEDY}")
        visited = {record[name] for record in done for name in ("step", "to")}
        to = max([step for step in good if step not in visited] or good)
        state, passed = checkpoints.restore(run.abstract, to), error.step - to
        carry = jax.jit(run.experiment.initial_carry, out_shardings=run.shardings.carry)()
        step, skipped = state.step + passed, state.skipped + passed
        checkpoints.save(error.step, dataclasses.replace(state, step=step, skipped=skipped, carry=carry))
    return to


def _keep_batch(folder: RunFolder, run: Run, step: int) -> str:
    """Writes the rows of a step's batch that this process reads; returns the file's name."""
    several = f"-{jax.process_index()}" if jax.process_count() > 1 else ""
    path = folder.diverged / f"{step:08d}{several}.npz"
    path.parent.mkdir(exist_ok=True)
    batch: dict[str, Any] = next(iter(run.loader.iterate(step - 1)))
    np.savez_compressed(path, **batch)
    return str(path)


def read_rollbacks(folder: RunFolder) -> list[Rollback]:
    """The rollbacks of a run, the first one first."""
    known = read_json(folder.rollbacks) if folder.rollbacks.exists() else []
    keys = {"since", "step", "to"}
    if not isinstance(known, list) or any(not (isinstance(x, dict) and keys <= x.keys()) for x in known):
        raise UserError(f"{folder.rollbacks}: expected a list of rollbacks, with {', '.join(sorted(keys))}")
    return known
