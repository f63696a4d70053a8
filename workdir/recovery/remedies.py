"""Remedies where training ended for a reason that can be set right."""

from collections.abc import Callable

from transformer.errors import Recoverable
from transformer.training.checkpoints.untrusted import DamagedCheckpoint
from transformer.training.extras.divergence import Diverged
from workdir.recovery.damage import set_aside
from workdir.recovery.rollback import roll_back

REMEDIES: dict[type[Recoverable], Callable[..., None]] = {DamagedCheckpoint: set_aside, Diverged: roll_back}


def recover(workdir: str, error: Recoverable) -> None:
    """Sets right what ended the training of a run, and what is found damaged meanwhile; raises `UserError` if
    it cannot."""
    try:
        REMEDIES[type(error)](workdir, error)
    except Recoverable as another:
        if another is error:
            raise
        recover(workdir, another)
