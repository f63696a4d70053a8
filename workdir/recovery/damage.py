"""Damaged checkpoints: moved aside when the run is resumed."""

import sys
from pathlib import Path

import jax

from transformer.distributed import together
from transformer.errors import UserError
from transformer.training.checkpoints.checkpoint import DamagedCheckpoint, checkpoint_steps
from workdir.folder import Workdir
from workdir.lock import exclusive


def set_aside(workdir: str, error: DamagedCheckpoint) -> None:
    """Moves a damaged checkpoint of a run from `checkpoints/` to `damaged/`, and says so; nothing is deleted.

    Raises:
      UserError: it is another run's, or the only one there is, which stays in its place.
    """
    folder, path = Workdir(workdir), Path(error.path)
    if path.parent != folder.checkpoints.absolute():
        raise error
    if len(checkpoint_steps(folder.checkpoints)) < 2:
        raise UserError(
            f"{error}; there is no other. To start over, move {folder.path} away, or {path.parent} alone"
        )
    with exclusive(folder.lock), together():
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
    number, found = 1, path
    while found.exists():
        found, number = path.with_name(f"{path.name}-{number}"), number + 1
    return found
