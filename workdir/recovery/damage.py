"""Damaged checkpoints: moved aside when the run is resumed."""

import sys
from pathlib import Path

import jax

from transformer.distributed import shared_errors
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.checkpoints.checkpoint import checkpoint_steps
from transformer.training.checkpoints.untrusted import DamagedCheckpoint
from workdir.lock import exclusive


def set_aside(workdir: str, error: DamagedCheckpoint) -> None:
    """Moves a damaged checkpoint of a run from `checkpoints/` to `damaged/` with a warning; nothing is lost.

    Raises:
      UserError: it is another run's, or the only one there is, which stays in its place.
    """
    folder, path = RunFolder(workdir), Path(error.path)
    if path.parent != folder.checkpoints.absolute():
        raise error
    if len(checkpoint_steps(folder.checkpoints)) < 2:
        raise UserError(
            f"{error}; there is no other. To start over, move {folder.path} away, or {path.parent} alone"
        )
    with exclusive(folder.lock), shared_errors():
        if jax.process_index() == 0 and path.exists():
            place = _free(folder.damaged / path.name)
            try:
                place.parent.mkdir(exist_ok=True)
                path.rename(place)
            except OSError as problem:
                raise UserError(f"{error}; it cannot be moved to {place} ({problem.strerror})") from None
            print(f"warning: {error}; moved to {place}, continuing from the one before", file=sys.stderr)


def _free(path: Path) -> Path:
    """This path, or if it is taken, with the first number behind it that is not."""
    number, free_path = 1, path
    while free_path.exists():
        free_path, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free_path
